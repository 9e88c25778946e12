// In place of NVRTC: the host's compiler makes a shared library of the source that the plugin wrote, against
// the emulator's headers. Its kernels run as those of the plugin do. Environment:
//   WARPTAPE_EMULATED_NVRTC=off|VERSION   there is none; its version, 13.0 by default
#include "nvrtc.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "internal.h"

extern char** environ;

namespace emulator {
namespace {

namespace fs = std::filesystem;

struct Unit {
  std::string source, log, code;
  std::map<std::string, std::string> headers;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Exit status of the command; what it says goes to the file.
int spawn(const std::vector<std::string>& command, const fs::path& says) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 2, says.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  int status = -1;
  if (!error) waitpid(child, &status, 0);
  return status;
}

int create(void** out, const char* source, const char*, int count, const char* const* texts,
           const char* const* names) {
  auto* unit = new Unit{source, "", "", {}};
  for (int i = 0; i < count; ++i) unit->headers[names[i]] = texts[i];
  *out = unit;
  return 0;
}
int destroy(void** unit) {
  delete static_cast<Unit*>(*unit);
  return 0;
}

int compile(void* handle, int, const char* const*) {
  auto& unit = *static_cast<Unit*>(handle);
  char name[] = "/tmp/warptape-nvrtc-XXXXXX";
  if (!mkdtemp(name)) return 1;
  const fs::path folder = name, library = folder / "chain.so", log = folder / "log";
  for (const auto& [header, text] : unit.headers) {
    if (header.find('/') == std::string::npos) continue;  // of the standard library, which is there
    fs::create_directories((folder / header).parent_path());
    std::ofstream(folder / header) << text;
  }
  std::ofstream(folder / "chain.cpp") << unit.source;
  Dl_info plugin;
  dladdr(reinterpret_cast<const void*>(&compile), &plugin);
  const int status = spawn({"c++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-march=x86-64-v2",
                            "-fwrapv", "-Wl,-Bsymbolic", "-DWARPTAPE_CUDA_EMULATED", "-D__CUDACC_RTC__",
                            "-I" WARPTAPE_EMULATOR, "-I" + folder.string(), "-include", "cuda_runtime.h",
                            (folder / "chain.cpp").string(), plugin.dli_fname, "-o", library.string()},
                           log);
  unit.log = read(log);
  unit.code = status == 0 ? read(library) : "";
  fs::remove_all(folder);
  return status == 0 ? 0 : 6;
}

int log_size(void* unit, size_t* size) {
  *size = static_cast<Unit*>(unit)->log.size();
  return 0;
}
int log_text(void* unit, char* to) {
  static_cast<Unit*>(unit)->log.copy(to, std::string::npos);
  return 0;
}
int code_size(void* unit, size_t* size) {
  *size = static_cast<Unit*>(unit)->code.size();
  return 0;
}
int code_bytes(void* unit, char* to) {
  static_cast<Unit*>(unit)->code.copy(to, std::string::npos);
  return 0;
}
int version(int* major, int* minor) {
  const char* given = getenv("WARPTAPE_EMULATED_NVRTC");
  if (!given || sscanf(given, "%d.%d", major, minor) != 2) *major = 13, *minor = 0;
  return 0;
}

}  // namespace

void* nvrtc_symbol(const char* name) {
  const char* given = getenv("WARPTAPE_EMULATED_NVRTC");
  if (given && !strcmp(given, "off")) return nullptr;
  static const std::map<std::string, void*> all{{"nvrtcCreateProgram", reinterpret_cast<void*>(create)},
                                                {"nvrtcDestroyProgram", reinterpret_cast<void*>(destroy)},
                                                {"nvrtcCompileProgram", reinterpret_cast<void*>(compile)},
                                                {"nvrtcGetProgramLogSize", reinterpret_cast<void*>(log_size)},
                                                {"nvrtcGetProgramLog", reinterpret_cast<void*>(log_text)},
                                                {"nvrtcGetCUBINSize", reinterpret_cast<void*>(code_size)},
                                                {"nvrtcGetCUBIN", reinterpret_cast<void*>(code_bytes)},
                                                {"nvrtcVersion", reinterpret_cast<void*>(version)}};
  return all.at(name);
}

}  // namespace emulator

struct CUlib_st {
  void* handle;
};

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  using namespace emulator;
  return call([&] {
    if (auto e = unsafe_call(); e != cudaSuccess) return e;
    const auto& head = *static_cast<const Elf64_Ehdr*>(code);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return cudaErrorInvalidValue;
    const size_t bytes = head.e_shoff + size_t{head.e_shnum} * head.e_shentsize;
    char name[] = "/tmp/warptape-kernel-XXXXXX";  // the loader takes equal names for one library
    const int file = mkstemp(name);
    const bool written = write(file, code, bytes) == static_cast<ssize_t>(bytes);
    close(file);
    void* handle = written ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr;
    unlink(name);
    if (!handle) return cudaErrorInvalidValue;
    *library = new CUlib_st{handle};
    return cudaSuccess;
  });
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  *kernel = static_cast<cudaKernel_t>(dlsym(library->handle, name));
  return emulator::remember(*kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}
