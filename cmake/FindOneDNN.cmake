# Finds oneDNN as pip installs it: the headers come from the wheel onednn-devel-cpu-gomp, libdnnl.so from
# onednn-cpu-gomp. Both write into the prefix of their environment (for an isolated build that is pip's temporary one), so
# the wheels' own file lists are asked, which holds in every layout. Falls back to a system-wide installation.
# Sets OneDNN_FOUND, OneDNN_VERSION, OneDNN_INCLUDE_DIR, OneDNN_LIBRARY and the imported target OneDNN::dnnl.
set(_onednn_query [[
from importlib.metadata import PackageNotFoundError, files
for package, suffix in (("onednn-devel-cpu-gomp", "include/oneapi/dnnl/dnnl.hpp"), ("onednn-cpu-gomp", "libdnnl.so.3")):
    try:
        found = [str(f.locate().absolute().parent.resolve() / f.name) for f in files(package) or () if f.as_posix().endswith(suffix)]
    except PackageNotFoundError:
        found = []
    print(found[0] if found else "-")
]])
execute_process(COMMAND ${Python_EXECUTABLE} -c "${_onednn_query}"
                OUTPUT_VARIABLE _onednn_files OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
string(REPLACE "\n" ";" _onednn_files "${_onednn_files}")
list(LENGTH _onednn_files _onednn_count)
set(_onednn_hints_include "")
set(_onednn_hints_lib "")
if(_onednn_count EQUAL 2)
  list(GET _onednn_files 0 _onednn_header)
  list(GET _onednn_files 1 _onednn_so)
  string(REPLACE "/oneapi/dnnl/dnnl.hpp" "" _onednn_hints_include "${_onednn_header}")
  get_filename_component(_onednn_hints_lib "${_onednn_so}" DIRECTORY)
endif()
# Not cached: an isolated build's environment is gone at the next configure.
unset(OneDNN_INCLUDE_DIR CACHE)
unset(OneDNN_LIBRARY CACHE)
find_path(OneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp HINTS ${_onednn_hints_include})
find_library(OneDNN_LIBRARY NAMES libdnnl.so.3 dnnl HINTS ${_onednn_hints_lib})
if(OneDNN_INCLUDE_DIR)
  file(STRINGS "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" _onednn_version REGEX "define DNNL_VERSION_[MP][A-Z]+ +[0-9]")
  list(TRANSFORM _onednn_version REPLACE "[^0-9]" "")
  list(JOIN _onednn_version "." OneDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR VERSION_VAR OneDNN_VERSION)
if(OneDNN_FOUND AND NOT TARGET OneDNN::dnnl)
  add_library(OneDNN::dnnl SHARED IMPORTED)
  set_target_properties(OneDNN::dnnl PROPERTIES IMPORTED_LOCATION "${OneDNN_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${OneDNN_INCLUDE_DIR}")
endif()
