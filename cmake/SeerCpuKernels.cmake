# CPU kernels of the engine (gpu/cpu). The same kernel source is compiled once per instruction set; which one runs is
# decided at run time. Files named *_avx512.cpp, *_avx2.cpp get their flags here; all others build for the baseline.
file(GLOB cpu_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/gpu/cpu/*.cpp)
if(cpu_sources)
  target_sources(seer_gpu PRIVATE ${cpu_sources})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    foreach(source ${cpu_sources})
      if(source MATCHES "_avx512\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
          "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma;-mavx2;-mprefer-vector-width=512")
      elseif(source MATCHES "_avx2\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
      endif()
    endforeach()
  endif()
endif()
