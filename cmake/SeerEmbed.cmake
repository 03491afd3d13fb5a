# Text files compiled into a program, so that it runs from anywhere: `#include "embedded/NAME.inc"` is a string literal
# with the text of the file NAME as it was when CMake ran; CMake runs again when the file changes.
include_guard(GLOBAL)

# seer_embed(target file...), files relative to the source folder
function(seer_embed target)
  foreach(file ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
    file(READ ${PROJECT_SOURCE_DIR}/${file} text)
    get_filename_component(name ${file} NAME)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/embed/${target}/embedded/${name}.inc
         CONTENT "R\"embedded(@text@)embedded\"\n" @ONLY)
  endforeach()
  target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/embed/${target})
endfunction()
