// The vendor's libraries that kernels call, opened on first use: nothing of them is linked, so the plugin
// loads where they are missing. Each is opened by absolute path; what it opens in turn by bare name (cuDNN's
// parts) is opened before it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace warptape::kernels::cuda {

enum class Library { Nvrtc, CublasLt, Cudnn, Nccl, Cupti, Cufft, Cublas, Cusolver };

// The folders that are searched, in order: those of WARPTAPE_CUDA_LIBRARIES (separated by colons), those the
// build used, the nvidia-* wheels beside the package and in other package folders, CUDA_HOME,
// /usr/local/cuda. What the process has loaded already (torch was imported) wins over all of them, the
// loader's own search comes last.
std::vector<std::string> library_folders();

// The function of that name, opening the library if need be; throws (raise_library_error) naming the library,
// the folders and what to install.
void* library_symbol(Library library, const char* name);

// Whether the opened library has the function: older releases lack some. Throws where there is no library.
bool library_has(Library library, const char* name);

// Absolute path of the opened library; throws like library_symbol.
std::string library_path(Library library);

// Names, versions and paths of the libraries; "not found: why" for one that does not open. Also declared in
// runtime.h, for the device runtime.
void append_library_versions(std::vector<std::pair<std::string, std::string>>& versions);

}  // namespace warptape::kernels::cuda
