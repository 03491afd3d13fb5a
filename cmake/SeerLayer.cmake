# One library per layer. Each layer sees its own headers and those of the layers it is linked to, and no others:
# headers are reached through a folder of links of its own, so that a wrong include fails to build.
include_guard(GLOBAL)

# The code has no warnings with GCC 12. Another compiler may find some, which should not end the build of a user.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
  set(is_gcc_12 ON)
else()
  set(is_gcc_12 OFF)
endif()
option(SEER_WARNINGS_ARE_ERRORS "a warning of the compiler ends the build (default: with GCC 12)" ${is_gcc_12})

function(seer_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow $<$<BOOL:${SEER_WARNINGS_ARE_ERRORS}>:-Werror>
                         -Wno-missing-field-initializers)  # designated initialisers name what differs from the default
endfunction()

# seer_layer(name FOLDER dir [SUBFOLDERS dir...] [EXCEPT file...] [USES public targets...] [PRIVATE_USES targets...])
function(seer_layer name)
  cmake_parse_arguments(ARG "" "FOLDER" "SUBFOLDERS;EXCEPT;USES;PRIVATE_USES" ${ARGN})
  set(links ${PROJECT_BINARY_DIR}/include/${name})
  get_filename_component(parent ${ARG_FOLDER} DIRECTORY)
  file(MAKE_DIRECTORY ${links}/${parent})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${ARG_FOLDER} ${links}/${ARG_FOLDER} SYMBOLIC)
  set(patterns ${PROJECT_SOURCE_DIR}/${ARG_FOLDER}/*.cpp)
  foreach(subfolder ${ARG_SUBFOLDERS})
    list(APPEND patterns ${PROJECT_SOURCE_DIR}/${ARG_FOLDER}/${subfolder}/*.cpp)
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  foreach(file ${ARG_EXCEPT})
    list(REMOVE_ITEM sources ${PROJECT_SOURCE_DIR}/${ARG_FOLDER}/${file})
  endforeach()
  if(sources)
    add_library(${name} STATIC ${sources})
    seer_warnings(${name})
    set(scope PUBLIC)
    target_link_libraries(${name} PRIVATE ${ARG_PRIVATE_USES})
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${name} ${scope} ${links})
  target_compile_features(${name} ${scope} cxx_std_20)  # of those that include its headers, in another project too
  target_link_libraries(${name} ${scope} ${ARG_USES} Threads::Threads)
endfunction()

# Takes the sources with this prefix out of a layer: their library was not found.
function(seer_layer_without name prefix)
  get_target_property(sources ${name} SOURCES)
  list(FILTER sources EXCLUDE REGEX "/${prefix}[^/]*$")
  set_target_properties(${name} PROPERTIES SOURCES "${sources}")
endfunction()
