# The CUDA plugin, libwarptape_cuda.so: csrc/core/cuda, csrc/distributed/nccl and kernels/cuda over libwarptape.so.
# WARPTAPE_CUDA says how:
#   OFF       it is not built.
#   ON, AUTO  with nvcc; AUTO leaves it out where the toolkit or a library's headers are missing.
#   EMULATED  for tests on machines without a GPU: the same sources as plain C++ against tests/emulator, which runs
#             kernels on the host. What libraries do there is done by the CPU's kernels.
set(WARPTAPE_CUDA_ARCHITECTURES "80+PTX;90a" CACHE STRING "GPU architectures to compile for, such as 90a; +PTX: also for later ones")
option(WARPTAPE_EMULATED_RACES "Let the emulated plugin look for races between the threads of a kernel (slow)" OFF)
set(WARPTAPE_CUDA_BUILT "")  # for the plugin's build information

# Where pip put a file of the nvidia-* wheels, by a suffix of its path; empty if it did not.
function(warptape_find_wheel_file out package suffix)
  set(query "
from importlib.metadata import PackageNotFoundError, files
try:
    print(next((str(f.locate()) for f in files('${package}') or () if f.as_posix().endswith('${suffix}')), ''))
except PackageNotFoundError:
    pass
")
  execute_process(COMMAND ${Python_EXECUTABLE} -c "${query}" OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# nvcc: from CUDACXX, the PATH, the usual place, or the wheel nvidia-cuda-nvcc. The wheels have lib for lib64 and no
# unversioned names, so nvcc is given a folder of links that looks like a toolkit.
function(warptape_find_nvcc out)
  find_program(WARPTAPE_NVCC nvcc HINTS "$ENV{CUDACXX}" ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda/bin)
  if(DEFINED ENV{CUDACXX})
    set(${out} "$ENV{CUDACXX}" PARENT_SCOPE)
  elseif(WARPTAPE_NVCC)
    set(${out} "${WARPTAPE_NVCC}" PARENT_SCOPE)
  else()
    warptape_find_wheel_file(nvcc nvidia-cuda-nvcc bin/nvcc)
    if(nvcc)
      get_filename_component(wheel "${nvcc}" DIRECTORY)
      get_filename_component(wheel "${wheel}" DIRECTORY)
      set(root "${PROJECT_BINARY_DIR}/cuda-toolkit")
      file(MAKE_DIRECTORY "${root}/bin")
      file(GLOB tools "${wheel}/bin/*")
      foreach(tool IN LISTS tools)
        get_filename_component(name "${tool}" NAME)
        if(IS_DIRECTORY "${tool}")
          file(CREATE_LINK "${tool}" "${root}/bin/${name}" SYMBOLIC)
        else()  # a copy: nvcc looks for its parts beside the file that it is
          file(COPY "${tool}" DESTINATION "${root}/bin")
        endif()
      endforeach()
      foreach(folder include nvvm lib)
        file(CREATE_LINK "${wheel}/${folder}" "${root}/${folder}" SYMBOLIC)
      endforeach()
      file(CREATE_LINK "${wheel}/lib" "${root}/lib64" SYMBOLIC)
      set(${out} "${root}/bin/nvcc" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# A header folder of a library: the toolkit's, the system's or a wheel's.
function(warptape_find_header out header package suffix)
  warptape_find_wheel_file(file ${package} ${suffix})
  string(REPLACE "/${header}" "" hint "${file}")
  unset(${out} CACHE)
  get_filename_component(toolkit "${WARPTAPE_CUDA_COMPILER}" DIRECTORY)
  find_path(${out} ${header} HINTS "${hint}" "${toolkit}/../include" ENV CUDNN_FRONTEND_INCLUDE)
endfunction()

# Says what is missing: an error for ON, a message for AUTO. Sets `missing` in the caller.
macro(warptape_cuda_missing what package)
  if(WARPTAPE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WARPTAPE_CUDA=ON, but ${what} was not found. Install it into the Python that builds:\n"
                        "  ${Python_EXECUTABLE} -m pip install ${package}")
  endif()
  message(STATUS "WARPTAPE_CUDA=AUTO: ${what} was not found; building for the CPU.")
  set(missing ON)
endmacro()

# Sets up the compiler and the headers; WARPTAPE_CUDA becomes OFF where AUTO does not find them.
macro(warptape_cuda_setup)
  set(missing OFF)
  warptape_find_nvcc(WARPTAPE_CUDA_COMPILER)
  if(NOT WARPTAPE_CUDA_COMPILER)
    warptape_cuda_missing("nvcc" "nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-nvtx")
  endif()
  warptape_find_header(CUBLAS_INCLUDE cublasLt.h nvidia-cublas include/cublasLt.h)
  if(NOT CUBLAS_INCLUDE)
    warptape_cuda_missing("cublasLt.h" "nvidia-cublas")
  endif()
  warptape_find_header(CUDNN_INCLUDE cudnn.h nvidia-cudnn-cu13 include/cudnn.h)
  if(NOT CUDNN_INCLUDE)
    warptape_cuda_missing("cudnn.h" "nvidia-cudnn-cu13")
  endif()
  warptape_find_header(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h nvidia-cudnn-frontend include/cudnn_frontend.h)
  if(NOT CUDNN_FRONTEND_INCLUDE)
    warptape_cuda_missing("cudnn_frontend.h" "nvidia-cudnn-frontend")
  endif()
  warptape_find_header(CUSOLVER_INCLUDE cusolverDn.h nvidia-cusolver include/cusolverDn.h)
  if(NOT CUSOLVER_INCLUDE)
    warptape_cuda_missing("cusolverDn.h" "nvidia-cusolver")
  endif()
  warptape_find_header(NCCL_INCLUDE nccl.h nvidia-nccl-cu13 include/nccl.h)
  if(NOT NCCL_INCLUDE)
    message(STATUS "nccl.h was not found (pip install nvidia-nccl-cu13): no collectives between GPUs")
  endif()
  warptape_find_header(CUPTI_INCLUDE cupti.h nvidia-cuda-cupti include/cupti.h)
  if(NOT CUPTI_INCLUDE)
    message(STATUS "cupti.h was not found (pip install nvidia-cuda-cupti): profiles without what GPUs do")
  endif()
  if(missing)
    set(WARPTAPE_CUDA OFF)
  else()
    set(CMAKE_CUDA_COMPILER "${WARPTAPE_CUDA_COMPILER}")
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # given below, for names such as 90a
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    set(targets "")
    foreach(architecture IN LISTS WARPTAPE_CUDA_ARCHITECTURES)
      string(APPEND targets " sm_${architecture}")
    endforeach()
    set(WARPTAPE_CUDA_BUILT "${CMAKE_CUDA_COMPILER_VERSION} for${targets}")
  endif()
endmacro()

if(WARPTAPE_CUDA MATCHES "^(ON|AUTO)$")
  warptape_cuda_setup()
elseif(WARPTAPE_CUDA STREQUAL "EMULATED")
  set(WARPTAPE_CUDA_BUILT "emulated on the host, for tests")
endif()

# Flags of the device code. Diagnostic 177 would call the entries of WT_KERNEL unused.
function(warptape_cuda_flags)
  set(flags --expt-relaxed-constexpr --diag-suppress=177 -O3 --compress-mode=size)
  foreach(architecture IN LISTS WARPTAPE_CUDA_ARCHITECTURES)
    string(REPLACE "+PTX" "" number "${architecture}")
    list(APPEND flags "-gencode=arch=compute_${number},code=sm_${number}")
    if(NOT number STREQUAL architecture)  # the driver compiles it for a GPU that is not in the list
      list(APPEND flags "-gencode=arch=compute_${number},code=compute_${number}")
    endif()
  endforeach()
  if(WARPTAPE_WERROR)
    list(APPEND flags --Werror=all-warnings)
  endif()
  target_compile_options(warptape_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${flags}>"
                         "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
endfunction()

# Sets `out` to a source file with the texts of what kernels that are compiled at run time include.
function(warptape_kernel_headers out)
  set(code "#include \"kernels/cuda/fused/chain_compile.h\"\n\nnamespace warptape::kernels::cuda {\nconst SourceText kKernelHeaders[] = {\n")
  set(count 0)
  foreach(file kernels/include/kernels/types.h kernels/include/kernels/complex.h kernels/include/kernels/float8.h
          kernels/include/kernels/dispatch.h kernels/include/kernels/elementwise/formulas.h
          kernels/include/kernels/elementwise/ops/activation.h kernels/include/kernels/elementwise/ops/arithmetic.h
          kernels/include/kernels/elementwise/ops/loss.h kernels/include/kernels/elementwise/ops/loss_backward.h
          kernels/include/kernels/elementwise/ops/math.h kernels/include/kernels/elementwise/gamma.h
          kernels/cuda/common/standard.h kernels/cuda/common/launch.cuh
          kernels/cuda/common/math.cuh kernels/cuda/common/memory.cuh kernels/cuda/common/index.cuh kernels/cuda/elementwise/formula.cuh kernels/cuda/fused/chain.cuh
          kernels/cuda/common/block.cuh kernels/cuda/common/groups.cuh kernels/cuda/norm/norm_rows.cuh kernels/cuda/fused/chain_rows.cuh)
    file(READ "${PROJECT_SOURCE_DIR}/${file}" text)
    string(REPLACE "kernels/include/" "" name "${file}")
    string(APPEND code "{\"${name}\", R\"header(${text})header\"},\n")
    math(EXPR count "${count} + 1")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${file}")
  endforeach()
  string(APPEND code "};\nconst int kKernelHeaderCount = ${count};\n}  // namespace warptape::kernels::cuda\n")
  set(file "${PROJECT_BINARY_DIR}/kernel_headers.cpp")
  file(WRITE "${file}.new" "${code}")
  configure_file("${file}.new" "${file}" COPYONLY)
  set(${out} "${file}" PARENT_SCOPE)
endfunction()

# warptape_cuda_plugin(): the target, after libwarptape.so's.
function(warptape_cuda_plugin)
  file(GLOB host CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/core/cuda/*.cpp")
  file(GLOB_RECURSE device CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu")
  file(GLOB nccl CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/distributed/transport/nccl/*.cpp")
  if(WARPTAPE_CUDA STREQUAL "EMULATED" OR NCCL_INCLUDE)
    list(APPEND host ${nccl})
  endif()
  if(WARPTAPE_CUDA STREQUAL "EMULATED")
    # Names in *_cub.cu, and most *.cpp beside the kernels, are the libraries': their stand-ins lie in tests/emulator.
    list(FILTER device EXCLUDE REGEX "_cub\\.cu$")
    set(emulator "${PROJECT_SOURCE_DIR}/tests/emulator")
    file(GLOB stand_ins CONFIGURE_DEPENDS "${emulator}/*.cpp")
    list(FILTER stand_ins EXCLUDE REGEX "/test_[a-z_]*\\.cpp$")
    foreach(name fft/fft gemm/matmul gemm/matmul_pieces quant/quant_linear_float8 linalg/solver linalg/solver_eigen
            fused/chain_source fused/chain_compile fused/chain_prepare)
      list(APPEND host "${PROJECT_SOURCE_DIR}/kernels/cuda/${name}.cpp")
    endforeach()
    list(APPEND host ${stand_ins})
    # conversions.cpp has what the compiler calls where a GPU may convert a float otherwise, races.cpp what it calls at
    # each access of memory. Bytes of arguments that nobody set have a pattern that launches.cpp knows.
    set(options -x c++ -fdata-sections -fsanitize=float-cast-overflow -ftrivial-auto-var-init=pattern)
    if(WARPTAPE_EMULATED_RACES)
      list(APPEND options -fsanitize=thread --param=tsan-distinguish-volatile=1)
    endif()
    set_source_files_properties(${device} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${options}")
  else()
    file(GLOB_RECURSE libraries CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/cuda/*.cpp")
    list(APPEND host ${libraries})
    # Formulas say where they round: a chain that runs several gives the same bits (chain_compile.cpp).
    set(formulas ${device})
    list(FILTER formulas INCLUDE REGEX "/(elementwise_[a-z]*|regression|norm)\\.cu$")
    set_source_files_properties(${formulas} PROPERTIES COMPILE_OPTIONS "--fmad=false")
    # cuDNN's frontend is templates that make a plan, once per shape: half of the time to compile is saved.
    set_source_files_properties("${PROJECT_SOURCE_DIR}/kernels/cuda/conv/conv.cpp" "${PROJECT_SOURCE_DIR}/kernels/cuda/attention/attention.cpp"
                                PROPERTIES COMPILE_OPTIONS "-O1")
  endif()
  warptape_kernel_headers(headers)
  add_library(warptape_cuda SHARED ${host} ${device} ${headers})
  target_compile_definitions(warptape_cuda PRIVATE WARPTAPE_KERNEL_DEVICE=CUDA)
  set_source_files_properties("${PROJECT_SOURCE_DIR}/csrc/core/cuda/plugin.cpp" PROPERTIES COMPILE_DEFINITIONS
                              "WARPTAPE_CUDA_BUILT=\"${WARPTAPE_CUDA_BUILT}\"")
  target_link_options(warptape_cuda PRIVATE -Wl,-Bsymbolic-functions)
  target_link_libraries(warptape_cuda PRIVATE warptape Threads::Threads ${CMAKE_DL_LIBS} rt)
  if(WARPTAPE_CUDA STREQUAL "EMULATED")
    warptape_target(warptape_cuda 1)
    target_include_directories(warptape_cuda BEFORE PRIVATE "${emulator}")
    target_compile_definitions(warptape_cuda PRIVATE WARPTAPE_CUDA_EMULATED)
    set_source_files_properties("${emulator}/nvrtc.cpp" PROPERTIES COMPILE_DEFINITIONS "WARPTAPE_EMULATOR=\"${emulator}\"")
    target_link_options(warptape_cuda PRIVATE "-Wl,-T,${emulator}/shared.ld")
    target_compile_options(warptape_cuda PRIVATE ${WARPTAPE_BASELINE_FLAGS} -Wno-unknown-pragmas -fwrapv)
  else()
    get_filename_component(toolkit "${CMAKE_CUDA_COMPILER}" DIRECTORY)
    target_include_directories(warptape_cuda PRIVATE ${WARPTAPE_INCLUDES})
    target_include_directories(warptape_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}
                               "${CUBLAS_INCLUDE}" "${CUSOLVER_INCLUDE}" "${CUDNN_INCLUDE}" "${CUDNN_FRONTEND_INCLUDE}")
    if(CUPTI_INCLUDE)
      target_include_directories(warptape_cuda SYSTEM PRIVATE "${CUPTI_INCLUDE}")
    endif()
    target_compile_definitions(warptape_cuda PRIVATE "WARPTAPE_CUBLAS_DIR=\"${CUBLAS_INCLUDE}/../lib\""
                               "WARPTAPE_CUDNN_DIR=\"${CUDNN_INCLUDE}/../lib\"")
    if(NCCL_INCLUDE)
      target_include_directories(warptape_cuda SYSTEM PRIVATE "${NCCL_INCLUDE}")
      target_compile_definitions(warptape_cuda PRIVATE "WARPTAPE_NCCL_DIR=\"${NCCL_INCLUDE}/../lib\"")
    endif()
    target_compile_options(warptape_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O2;-Wall;-Wextra>")
    if(WARPTAPE_WERROR)
      target_compile_options(warptape_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Werror;-Wno-maybe-uninitialized>")
    endif()
    set_target_properties(warptape_cuda PROPERTIES CUDA_RUNTIME_LIBRARY Static)
    warptape_cuda_flags()
  endif()
  warptape_install(warptape_cuda "$ORIGIN")
endfunction()
