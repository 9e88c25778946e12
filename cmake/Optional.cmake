# Optional parts. Each is ON (must be there), OFF, or AUTO (used where found).
# Sets WARPTAPE_LIBRARIES and WARPTAPE_FEATURES (compile definitions).
set(WARPTAPE_LIBRARIES "")
set(WARPTAPE_FEATURES "")

if(NOT WARPTAPE_GLOO MATCHES "^(OFF|ON|AUTO)$")
  message(FATAL_ERROR "WARPTAPE_GLOO is '${WARPTAPE_GLOO}'; expected OFF, ON or AUTO.")
endif()
if(NOT WARPTAPE_MPI MATCHES "^(OFF|ON|AUTO)$")
  message(FATAL_ERROR "WARPTAPE_MPI is '${WARPTAPE_MPI}'; expected OFF, ON or AUTO.")
endif()
if(NOT WARPTAPE_CUDA MATCHES "^(OFF|ON|AUTO|EMULATED)$")
  message(FATAL_ERROR "WARPTAPE_CUDA is '${WARPTAPE_CUDA}'; expected OFF, ON, AUTO, or EMULATED (for tests).")
endif()

set(GLOO_FOUND OFF)
if(NOT WARPTAPE_GLOO STREQUAL "OFF")
  find_path(GLOO_INCLUDE gloo/rendezvous/context.h)
  find_library(GLOO_LIBRARY gloo)
  if(GLOO_INCLUDE AND GLOO_LIBRARY)
    set(GLOO_FOUND ON)
  elseif(WARPTAPE_GLOO STREQUAL "ON")
    message(FATAL_ERROR "WARPTAPE_GLOO=ON, but gloo was not found. Install it:\n  apt-get install libgloo-dev")
  endif()
endif()

set(MPI_CXX_FOUND OFF)
if(NOT WARPTAPE_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)  # MPI's old C++ interface
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND AND WARPTAPE_MPI STREQUAL "ON")
    message(FATAL_ERROR "WARPTAPE_MPI=ON, but no MPI was found. Install one, or put its mpicxx into PATH:\n"
                        "  apt-get install libopenmpi-dev openmpi-bin")
  endif()
endif()

include(Cuda)
message(STATUS "warptape ${PROJECT_VERSION}: kernels for ${WARPTAPE_CPU_ISAS}; gloo ${GLOO_FOUND}; "
               "MPI ${MPI_CXX_FOUND}; "
               "CUDA ${WARPTAPE_CUDA} ${WARPTAPE_CUDA_BUILT}")
