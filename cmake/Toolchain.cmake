# Compiler settings that every target shares.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|aarch64)$" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "warptape builds for Linux on x86-64 and aarch64; this is ${CMAKE_SYSTEM_NAME} on ${CMAKE_SYSTEM_PROCESSOR}.")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "warptape needs g++ 12 or newer; ${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_VERSION}.")
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(WARPTAPE_CCACHE ccache)
  if(WARPTAPE_CCACHE)
    # The base folder makes the hits independent of where the checkout lies.
    set(CMAKE_CXX_COMPILER_LAUNCHER env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${WARPTAPE_CCACHE}")
  endif()
endif()

# Headers that most files of a target include are parsed once. Objects made so cannot be shared between checkouts by
# ccache, which also keeps precompiled headers that a later edit made old: where that is in use, it saves more.
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES ccache)
  set(WARPTAPE_PCH_DEFAULT OFF)
else()
  set(WARPTAPE_PCH_DEFAULT ON)
endif()
option(WARPTAPE_PCH "Precompiled headers" ${WARPTAPE_PCH_DEFAULT})
function(warptape_precompile name)
  if(WARPTAPE_PCH)
    target_precompile_headers(${name} PRIVATE ${ARGN})
  endif()
endfunction()

# What code outside the kernels may use: every x86-64 processor since 2009 has it, or every aarch64 one.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(WARPTAPE_BASELINE_FLAGS -march=armv8-a)
else()
  set(WARPTAPE_BASELINE_FLAGS -march=x86-64-v2)
endif()
if(WARPTAPE_NATIVE)
  set(WARPTAPE_BASELINE_FLAGS -march=native)
endif()

# warptape_target(name level): warnings, optimisation level (kernels: 3, all else: 2), include folders, sanitizers. The
# build type Test takes two off: for a run of tests in an emulator, most of whose time would go into compiling.
function(warptape_target name level)
  math(EXPR test_level "${level} - 2")
  target_include_directories(${name} PRIVATE ${WARPTAPE_INCLUDES})
  # Integer tensors wrap around, as PyTorch's do; signed overflow without -fwrapv would be undefined.
  target_compile_options(${name} PRIVATE -Wall -Wextra -fno-semantic-interposition -fwrapv
                         $<$<CONFIG:Release>:-O${level}> $<$<CONFIG:Test>:-O${test_level}>)
  if(WARPTAPE_SLIM AND level EQUAL 2)
    target_compile_options(${name} PRIVATE -Os)  # kernels are few; all else is many
  endif()
  if(WARPTAPE_WERROR)
    # GCC 12 sees uninitialised values in std::optional and in its own intrinsics where there are none.
    target_compile_options(${name} PRIVATE -Werror -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  if(WARPTAPE_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${WARPTAPE_SANITIZE} -fno-omit-frame-pointer -g1 -O1)
  endif()
endfunction()
if(WARPTAPE_SANITIZE)
  add_link_options(-fsanitize=${WARPTAPE_SANITIZE})
endif()

# warptape_install(name rpath): into the package folder.
function(warptape_install name rpath)
  install(TARGETS ${name} LIBRARY DESTINATION warptape)
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "${rpath}")
  if(WARPTAPE_INPLACE)
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_SOURCE_DIR}/python/warptape")
  endif()
endfunction()
