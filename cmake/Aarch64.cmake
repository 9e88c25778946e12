# Cross build for aarch64 Linux: -DCMAKE_TOOLCHAIN_FILE=cmake/Aarch64.cmake (docs/reference/architectures.md). WARPTAPE_SYSROOT names
# a folder with the target's Python headers, as .ci/aarch64 unpacks them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
