# find_package(warptape): the target warptape::warptape, with headers and the library that extensions are linked with.
#   cmake -DCMAKE_PREFIX_PATH="$(python -c 'import warptape.utils; print(warptape.utils.cmake_prefix_path)')"
# A module for Python also needs find_package(pybind11).
get_filename_component(warptape_ROOT "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(warptape_INCLUDE_DIRS "${warptape_ROOT}/torch/include" "${warptape_ROOT}/include")
set(warptape_LIBRARIES warptape::warptape)
if(NOT TARGET warptape::warptape)
  add_library(warptape::warptape SHARED IMPORTED)
  set_target_properties(warptape::warptape PROPERTIES
    IMPORTED_LOCATION "${warptape_ROOT}/libwarptape.so"
    INTERFACE_INCLUDE_DIRECTORIES "${warptape_INCLUDE_DIRS}"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()
set(warptape_FOUND TRUE)
