# The kernels of the CUDA engine (gpu/cuda), where CUDA's compiler is found. They go into seer_gpu as an object; no CUDA header is
# needed elsewhere. What ptxas says of each kernel (registers, spills) is kept for a test.
set(SEER_CUDA_ARCHITECTURES "" CACHE STRING "GPUs that kernels are built for, as compute capabilities; empty: 80;90;100, as far as nvcc knows them")
if(SEER_WITH_CUDA)
  find_package(CUDAToolkit 12 QUIET)
endif()
if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
  set(SEER_HAVE_CUDA ON)
  set(SEER_PTXAS_LOG ${PROJECT_BINARY_DIR}/cuda/ptxas.log)
  # No fma but those that the source asks for, denormals flushed, division and square root rounded correctly: as on the CPU.
  set(SEER_NVCC_FLAGS -std=c++20 --expt-relaxed-constexpr -fmad=false -ftz=true -I${PROJECT_SOURCE_DIR})
  set(architectures ${SEER_CUDA_ARCHITECTURES})
  if(NOT architectures)
    set(architectures 80 90)
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND architectures 100)
    endif()
  endif()
  set(numbers ${architectures})
  list(TRANSFORM numbers REPLACE "[a-z]+$" "")
  list(SORT numbers COMPARE NATURAL)
  list(GET numbers -1 newest)  # also as PTX, for later GPUs. PTX of 9.0a would run on none of them
  list(TRANSFORM architectures REPLACE "^90$" "90a")  # with wgmma, which 9.0 has and later GPUs have not
  set(codes)
  foreach(architecture ${architectures})
    list(APPEND codes -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(APPEND codes -gencode=arch=compute_${newest},code=compute_${newest})
  file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/gpu/cuda/kernels/*)
  set(SEER_KERNEL_SOURCES ${kernel_sources} ${PROJECT_SOURCE_DIR}/gpu/cuda/cuda_kernels.cu ${PROJECT_SOURCE_DIR}/gpu/cuda/kernel_args.h
      ${PROJECT_SOURCE_DIR}/gpu/cpu/exact_math_body.h ${PROJECT_SOURCE_DIR}/gpu/cpu/exp_lanes.h ${PROJECT_SOURCE_DIR}/gpu/philox.h)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/cuda/cuda_kernels.o DEPENDS ${SEER_KERNEL_SOURCES} VERBATIM
    COMMAND sh -c "\"$@\" >\"$0\" 2>&1 || { cat \"$0\"; exit 1; }" ${SEER_PTXAS_LOG}
            ${CUDAToolkit_NVCC_EXECUTABLE} ${SEER_NVCC_FLAGS} ${codes} -O3 -Xcompiler -fPIC -Xptxas -v
            -c ${PROJECT_SOURCE_DIR}/gpu/cuda/cuda_kernels.cu -o ${PROJECT_BINARY_DIR}/cuda/cuda_kernels.o)
  # For tests: PTX, which they interpret, and machine code, whose instructions they count.
  set(SEER_PTX ${PROJECT_BINARY_DIR}/cuda/cuda_kernels)  # _80.ptx, _90a.ptx
  set(SEER_CUBIN ${PROJECT_BINARY_DIR}/cuda/cuda_kernels.cubin)
  foreach(architecture 80 90a)
    add_custom_command(OUTPUT ${SEER_PTX}_${architecture}.ptx DEPENDS ${SEER_KERNEL_SOURCES} VERBATIM
      COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} ${SEER_NVCC_FLAGS} -lineinfo -arch=compute_${architecture} -ptx
              ${PROJECT_SOURCE_DIR}/gpu/cuda/cuda_kernels.cu -o ${SEER_PTX}_${architecture}.ptx)
  endforeach()
  add_custom_command(OUTPUT ${SEER_CUBIN} DEPENDS ${SEER_KERNEL_SOURCES} VERBATIM
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} ${SEER_NVCC_FLAGS} -arch=sm_90a -cubin
            ${PROJECT_SOURCE_DIR}/gpu/cuda/cuda_kernels.cu -o ${SEER_CUBIN})
  add_custom_target(seer_ptx DEPENDS ${SEER_PTX}_80.ptx ${SEER_PTX}_90a.ptx ${SEER_CUBIN})
  set_source_files_properties(${PROJECT_BINARY_DIR}/cuda/cuda_kernels.o PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(seer_gpu PRIVATE ${PROJECT_BINARY_DIR}/cuda/cuda_kernels.o)
  seer_layer_without(seer_gpu no_cuda_)
  target_link_libraries(seer_gpu PRIVATE CUDA::cudart_static)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})  # the library is loaded at run time
else()
  message(STATUS "CUDA toolkit not found: no CUDA engine, models run on the CPU (install CUDA's nvcc, 12 or later)")
  seer_layer_without(seer_gpu cuda_runtime_)
endif()
if(SEER_HAVE_CUDA AND NCCL_INCLUDE_DIR)
  seer_layer_without(seer_gpu no_nccl_)
  set_source_files_properties(gpu/cuda/nccl_communicator.cpp PROPERTIES INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR};${CUDAToolkit_INCLUDE_DIRS}")
  target_link_libraries(seer_gpu PRIVATE ${CMAKE_DL_LIBS})
else()
  seer_layer_without(seer_gpu nccl_)
endif()
