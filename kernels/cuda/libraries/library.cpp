#include "kernels/cuda/libraries/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <mutex>

#if !defined(WARPTAPE_CUDA_MAJOR)
#define WARPTAPE_CUDA_MAJOR 13  // of the toolkit: part of cuBLASLt's file name
#endif
#if !defined(WARPTAPE_CUFFT_MAJOR)
#define WARPTAPE_CUFFT_MAJOR 12  // of CUDA 13
#endif
#if !defined(WARPTAPE_CUSOLVER_MAJOR)
#define WARPTAPE_CUSOLVER_MAJOR 12  // of CUDA 13
#endif
#if !defined(WARPTAPE_CUBLAS_DIR)
#define WARPTAPE_CUBLAS_DIR ""
#endif
#if !defined(WARPTAPE_CUDNN_DIR)
#define WARPTAPE_CUDNN_DIR ""
#endif
#if !defined(WARPTAPE_NCCL_DIR)
#define WARPTAPE_NCCL_DIR ""
#endif
#define WT_TEXT_OF(x) #x
#define WT_TEXT(x) WT_TEXT_OF(x)

namespace warptape::kernels::cuda {

[[noreturn]] void raise_library_error(const std::string& text);  // runtime.h, without CUDA's headers
std::vector<std::string> package_folders();                      // the same

namespace {

struct Description {
  const char* name;
  const char* file;
  const char* package;
  const char* version_function;  // size_t (void); NCCL's, cuFFT's and cuSOLVER's take int*, NVRTC's two
  std::array<const char*, 9>
      first{};                     // opened before it, from its own folder, where they are there; patterns
  std::array<Library, 2> needs{};  // other libraries it would open by bare name
  int need_count = 0;
};

// cuDNN's parts in the order in which they need each other. It opens them by bare name and finds those of its
// own version loaded, whatever LD_LIBRARY_PATH says.
const Description& description(Library library) {
  static const Description all[] = {
      {"NVRTC",
       "libnvrtc.so." WT_TEXT(WARPTAPE_CUDA_MAJOR),
       "nvidia-cuda-nvrtc",
       "nvrtcVersion",
       {"libnvrtc-builtins.so.*"}},
      {"cuBLASLt", "libcublasLt.so." WT_TEXT(WARPTAPE_CUDA_MAJOR), "nvidia-cublas", "cublasLtGetVersion"},
      {"cuDNN",
       "libcudnn.so.9",
       "nvidia-cudnn-cu" WT_TEXT(WARPTAPE_CUDA_MAJOR),
       "cudnnGetVersion",
       {"libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_cnn.so.9", "libcudnn_adv.so.9",
        "libcudnn_heuristic.so.9", "libcudnn_engines_precompiled.so.9",
        "libcudnn_engines_runtime_compiled.so.9", "libcudnn_engines_tensor_ir.so.9", "libcudnn_ext.so.9"},
       {Library::Nvrtc, Library::CublasLt},
       2},
      {"NCCL", "libnccl.so.2", "nvidia-nccl-cu" WT_TEXT(WARPTAPE_CUDA_MAJOR), "ncclGetVersion"},
      {"CUPTI", "libcupti.so." WT_TEXT(WARPTAPE_CUDA_MAJOR), "nvidia-cuda-cupti", "cuptiGetVersion"},
      {"cuFFT", "libcufft.so." WT_TEXT(WARPTAPE_CUFFT_MAJOR), "nvidia-cufft", "cufftGetVersion"},
      {"cuBLAS",
       "libcublas.so." WT_TEXT(WARPTAPE_CUDA_MAJOR),
       "nvidia-cublas",
       "cublasGetCudartVersion",
       {},
       {Library::CublasLt},
       1},
      {"cuSOLVER",
       "libcusolver.so." WT_TEXT(WARPTAPE_CUSOLVER_MAJOR),
       "nvidia-cusolver",
       "cusolverGetVersion",
       {"libnvJitLink.so.*", "libcusparse.so.*"},
       {Library::CublasLt, Library::Cublas},
       2},
  };
  return all[static_cast<int>(library)];
}

struct Opened {
  void* handle = nullptr;
  std::string path;
};

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string path_of(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map || !map->l_name) return "";
  return map->l_name;
}

// Where this code's own library lies.
std::string own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&library_folders), &info) || !info.dli_fname) return "";
  return folder_of(info.dli_fname);
}

void append_split(std::vector<std::string>& folders, const char* list) {
  std::string part;
  for (const char* c = list; c; ++c) {
    if (*c && *c != ':') {
      part += *c;
      continue;
    }
    if (!part.empty()) folders.push_back(part);
    part.clear();
    if (!*c) break;
  }
}

void open_parts(const Description& d, const std::string& folder) {
  for (const char* part : d.first) {
    if (!part) break;
    glob_t found{};
    // A part that does not open is reported by the library itself, once a call needs it.
    if (glob((folder + "/" + part).c_str(), 0, nullptr, &found) == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i) dlopen(found.gl_pathv[i], RTLD_LAZY | RTLD_LOCAL);
    globfree(&found);
  }
}

// Null and one line more in `failures` where the folder has it, but it does not open.
void* open_in(const Description& d, const std::string& folder, std::string& failures) {
  const std::string path = folder + "/" + d.file;
  if (access(path.c_str(), R_OK) != 0) return nullptr;
  open_parts(d, folder);
  void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!handle) failures += std::string("\n  ") + dlerror();
  return handle;
}

Opened open(const Description& d) {
  Opened found;
  if ((found.handle = dlopen(d.file, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD))) {
    found.path = path_of(found.handle);
    open_parts(d, folder_of(found.path));
    return found;
  }
  std::string failures, searched;
  for (const std::string& folder : library_folders()) {
    searched += "\n  " + folder;
    if ((found.handle = open_in(d, folder, failures))) break;
  }
  if (!found.handle) found.handle = dlopen(d.file, RTLD_LAZY | RTLD_LOCAL);
  if (!found.handle)
    raise_library_error(std::string(d.name) + " (" + d.file + ") was not found; `pip install " + d.package +
                        "` brings it, or name its folder in WARPTAPE_CUDA_LIBRARIES. Searched:" + searched +
                        "\n  and where the system's loader looks" +
                        (failures.empty() ? "" : "\nFound, but not usable:" + failures));
  found.path = path_of(found.handle);
  return found;
}

const Opened& opened(Library library) {
  static std::array<Opened, 8> all;
  static std::recursive_mutex mutex;
  std::lock_guard lock(mutex);
  Opened& entry = all[static_cast<size_t>(library)];
  if (entry.handle) return entry;
  const Description& d = description(library);
  for (int i = 0; i < d.need_count; ++i) {
    try {
      opened(d.needs[static_cast<size_t>(i)]);
    } catch (const std::exception&) {
      // Most calls work without: it is said when one does not.
    }
  }
  return entry = open(d);
}

// The others number their versions alike: 131000 is cuBLASLt 13.10.0, 22803 is NCCL 2.28.3.
std::string version_of(Library library) {
  void* function = library_symbol(library, description(library).version_function);
  if (library == Library::Nvrtc) {
    int major = 0, minor = 0;
    reinterpret_cast<int (*)(int*, int*)>(function)(&major, &minor);
    return std::to_string(major) + "." + std::to_string(minor);
  }
  int code = 0;
  if (library == Library::Nccl || library == Library::Cufft || library == Library::Cusolver)
    reinterpret_cast<int (*)(int*)>(function)(&code);
  if (library == Library::Cusolver)  // 12004 is 12.0.4
    return std::to_string(code / 1000) + "." + std::to_string(code / 100 % 10) + "." +
           std::to_string(code % 100);
  const size_t v = code ? static_cast<size_t>(code) : reinterpret_cast<size_t (*)()>(function)();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

}  // namespace

std::vector<std::string> library_folders() {
  std::vector<std::string> folders;
  append_split(folders, std::getenv("WARPTAPE_CUDA_LIBRARIES"));
  for (const char* built_with : {WARPTAPE_CUBLAS_DIR, WARPTAPE_CUDNN_DIR, WARPTAPE_NCCL_DIR}) {
    if (!*built_with) continue;
    folders.push_back(built_with);
    folders.push_back(std::string(built_with) + "64");  // a toolkit's; the wheels have lib
  }
  // <site-packages>/warptape/libwarptape_cuda.so and <site-packages>/nvidia/...
  std::vector<std::string> packages = package_folders();
  packages.insert(packages.begin(), own_folder() + "/..");
  for (const std::string& folder : packages) {
    const std::string wheels = folder + "/nvidia/";
    if (folder != packages.front() && access(wheels.c_str(), F_OK) != 0) continue;
    for (const char* part : {"cu" WT_TEXT(WARPTAPE_CUDA_MAJOR), "cudnn", "cublas", "cuda_nvrtc", "nccl",
                             "cuda_cupti", "cufft", "cusolver"})
      folders.push_back(wheels + part + "/lib");
  }
  if (const char* home = std::getenv("CUDA_HOME")) folders.push_back(std::string(home) + "/lib64");
  folders.push_back("/usr/local/cuda/lib64");
  return folders;
}

void* library_symbol(Library library, const char* name) {
  const Opened& o = opened(library);
  if (void* symbol = dlsym(o.handle, name)) return symbol;
  const Description& d = description(library);
  raise_library_error(std::string(d.name) + " at " + o.path + " has no function " + name +
                      ": it is too old; `pip install -U " + d.package + "`");
}

bool library_has(Library library, const char* name) { return dlsym(opened(library).handle, name); }

std::string library_path(Library library) { return opened(library).path; }

void append_library_versions(std::vector<std::pair<std::string, std::string>>& versions) {
  for (Library library : {Library::Nvrtc, Library::CublasLt, Library::Cudnn, Library::Nccl, Library::Cufft,
                          Library::Cusolver}) {
    const Description& d = description(library);
    try {
      versions.emplace_back(d.name, version_of(library) + " (" + library_path(library) + ")");
    } catch (const std::exception& e) {
      versions.emplace_back(d.name, std::string("not found: ") + e.what());
    }
  }
}

}  // namespace warptape::kernels::cuda
