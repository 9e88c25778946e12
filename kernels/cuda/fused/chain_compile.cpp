#include "kernels/cuda/fused/chain_compile.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

#include "kernels/cuda/libraries/library.h"

namespace warptape::kernels::cuda {

[[noreturn]] void raise_library_error(const std::string& text);  // runtime.h, without CUDA's headers

namespace {

// As of elementwise_*.cu (cmake/Cuda.cmake): without contraction a step's last bit does not depend on its
// neighbours. What has no space for it is a function of the device.
constexpr const char* kFlags[] = {"--std=c++20", "--fmad=false", "-default-device",
                                  "--diag-suppress=177,550,1097"};
constexpr const char* kStandardNames[] = {"cstddef", "cstdint", "cstring", "type_traits", "math.h"};

template <class... A>
int call(const char* name, A... arguments) {
  return reinterpret_cast<int (*)(A...)>(library_symbol(Library::Nvrtc, name))(arguments...);
}

// One translation unit of NVRTC.
class Unit {
 public:
  explicit Unit(const std::string& source) {
    std::vector<const char*> names, texts;
    for (int i = 0; i < kKernelHeaderCount; ++i) {
      names.push_back(kKernelHeaders[i].name);
      texts.push_back(kKernelHeaders[i].text);
    }
    for (const char* name : kStandardNames) {
      names.push_back(name);
      texts.push_back("#include \"kernels/cuda/common/standard.h\"\n");
    }
    check(call("nvrtcCreateProgram", &unit_, source.c_str(), "chain.cu", static_cast<int>(names.size()),
               texts.data(), names.data()));
  }
  ~Unit() { call("nvrtcDestroyProgram", &unit_); }
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  std::string compile(int capability) {
    const std::string architecture = "--gpu-architecture=sm_" + std::to_string(capability);
    std::vector<const char*> flags(std::begin(kFlags), std::end(kFlags));
    flags.push_back(architecture.c_str());
    const int result = call("nvrtcCompileProgram", unit_, static_cast<int>(flags.size()), flags.data());
    if (result != 0)
      raise_library_error("NVRTC cannot compile a fused kernel (error " + std::to_string(result) + "):\n" +
                          text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog"));
    return text("nvrtcGetCUBINSize", "nvrtcGetCUBIN");
  }

 private:
  static void check(int result) {
    if (result != 0) raise_library_error("NVRTC failed with error " + std::to_string(result));
  }
  std::string text(const char* size_function, const char* function) {
    size_t size = 0;
    check(call(size_function, unit_, &size));
    std::string out(size, '\0');
    check(call(function, unit_, out.data()));
    return out;
  }
  void* unit_ = nullptr;
};

// ---- the cache: files of key, code and a check sum over both ----
uint64_t hash_of(const std::string& text) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325;
  for (unsigned char c : text) h = (h ^ c) * 0x100000001b3;
  return h;
}

// Empty where the user has none.
std::string cache_folder() {
  std::string folder;
  if (const char* given = std::getenv("WARPTAPE_CACHE")) {
    folder = given;
  } else if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) {
    folder = std::string(cache) + "/warptape";
  } else if (const char* home = std::getenv("HOME"); home && *home) {
    folder = std::string(home) + "/.cache/warptape";
  }
  for (size_t at = 1; !folder.empty() && at != std::string::npos; at = folder.find('/', at + 1))
    if (at > 1) mkdir(folder.substr(0, at).c_str(), 0700);
  if (!folder.empty()) mkdir(folder.c_str(), 0700);
  return folder;
}

std::string frame(const std::string& key, const std::string& code) {
  const uint64_t sizes[] = {key.size(), code.size(), hash_of(key + code)};
  return "warptape kernel\n" + std::string(reinterpret_cast<const char*>(sizes), sizeof sizes) + key + code;
}

// The code in the file, or nothing.
std::string load(const std::string& path, const std::string& key) {
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const size_t head = frame("", "").size() + key.size();
  if (content.size() <= head) return "";
  std::string code = content.substr(head);
  return content == frame(key, code) ? code : "";
}

void store(const std::string& path, const std::string& key, const std::string& code) {
  static std::atomic<int> number{0};
  const std::string own = path + "." + std::to_string(getpid()) + "." + std::to_string(number++);
  std::ofstream file(own, std::ios::binary);
  file << frame(key, code);
  file.close();
  if (!file || std::rename(own.c_str(), path.c_str()) != 0) std::remove(own.c_str());
}

std::string key_of(const std::string& source, int capability) {
  std::string key = "NVRTC " + std::to_string(nvrtc_release()) + ", sm_" + std::to_string(capability);
  for (const char* flag : kFlags) key += std::string(" ") + flag;
  uint64_t headers = 0;
  for (int i = 0; i < kKernelHeaderCount; ++i)
    headers = headers * 31 + hash_of(std::string(kKernelHeaders[i].name) + '\n' + kKernelHeaders[i].text);
  return key + ", headers " + std::to_string(headers) + "\n" + source;
}

}  // namespace

int nvrtc_release() {
  int major = 0, minor = 0;
  if (call("nvrtcVersion", &major, &minor) != 0) raise_library_error("NVRTC does not tell its version");
  return major * 100 + minor;
}

std::string compile_kernel(const std::string& source, int capability) {
  const std::string folder = cache_folder(), key = key_of(source, capability);
  char name[32];
  std::snprintf(name, sizeof name, "/%016llx.cubin", static_cast<unsigned long long>(hash_of(key)));
  if (!folder.empty())
    if (std::string code = load(folder + name, key); !code.empty()) return code;
  std::string code = Unit(source).compile(capability);
  if (!folder.empty()) store(folder + name, key, code);
  return code;
}

}  // namespace warptape::kernels::cuda
