# Compiles through ccache, where it is installed and can write to its folder: otherwise each compilation would fail. It is tried each
# time that CMake runs, because a build may move to a user without a home folder.
find_program(SEER_CCACHE ccache)
if(SEER_CCACHE)
  set(trial ${PROJECT_BINARY_DIR}/CMakeFiles/ccache_trial)
  file(WRITE ${trial}.cpp "")
  execute_process(COMMAND ${SEER_CCACHE} ${CMAKE_CXX_COMPILER} -c ${trial}.cpp -o ${trial}.o RESULT_VARIABLE failed ERROR_VARIABLE said)
  if(failed)
    message(STATUS "ccache is not used: ${said}")
  else()
    set(CMAKE_CXX_COMPILER_LAUNCHER ${SEER_CCACHE})
  endif()
endif()
