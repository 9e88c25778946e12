# A small libwarptape.so for one program: the kernels that WARPTAPE_SLIM lists, one a line, as
# `warptape-run-program --kernels FILE` writes them; one instruction set; no Python, no symbols.
if(NOT EXISTS "${WARPTAPE_SLIM}")
  message(FATAL_ERROR "WARPTAPE_SLIM is '${WARPTAPE_SLIM}', which is no file. Write one with "
                      "`warptape-run-program PROGRAM --kernels FILE`.")
endif()
list(LENGTH WARPTAPE_CPU_ISAS isas)
if(NOT isas EQUAL 1)
  message(FATAL_ERROR "WARPTAPE_SLIM builds for one instruction set; WARPTAPE_CPU_ISAS is '${WARPTAPE_CPU_ISAS}'. "
                      "Give one of ${WARPTAPE_KNOWN_ISAS}.")
endif()
set(WARPTAPE_GLOO OFF)
set(WARPTAPE_MPI OFF)
set(WARPTAPE_CUDA OFF)
list(REMOVE_ITEM WARPTAPE_LAYERS transforms inference distributed)

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${WARPTAPE_SLIM}")
file(STRINGS "${WARPTAPE_SLIM}" names REGEX "^[A-Za-z0-9_]+$")
list(LENGTH names count)
if(count EQUAL 0)
  message(FATAL_ERROR "WARPTAPE_SLIM: ${WARPTAPE_SLIM} names no kernel.")
endif()
list(TRANSFORM names REPLACE "(.+)" "\"\\1\"")
list(JOIN names ", " names)
file(CONFIGURE OUTPUT slim/kernels/slim_kernels.h CONTENT "// Written by cmake/Slim.cmake.
#pragma once
#include <string_view>
namespace warptape::kernels {
constexpr bool is_listed(std::string_view name) {
  for (const char* one : {@names@})
    if (name == one) return true;
  return false;
}
}  // namespace warptape::kernels
" @ONLY)
include_directories("${PROJECT_BINARY_DIR}/slim")
add_compile_definitions(WARPTAPE_SLIM)
add_compile_options(-ffunction-sections -fdata-sections -Wno-unused-function)
file(WRITE "${PROJECT_BINARY_DIR}/slim/exports.map" "{ global: wt_*; local: *; };\n")
add_link_options(-Wl,--gc-sections -s)
# Nothing is exported but the C interface, so that the linker can drop what it does not reach.
set(WARPTAPE_SLIM_LINK "-Wl,--version-script=${PROJECT_BINARY_DIR}/slim/exports.map")
