#include "core/device_runtime.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "core/dtype.h"
#include "core/environment.h"
#include "core/errors.h"
#include "core/limits.h"
#include "kernels/dispatch.h"

extern "C" {
// Borders of the section that WT_KERNEL fills in this library.
extern const warptape::kernels::KernelEntry __start_wt_kernels[] __attribute__((weak, visibility("hidden")));
extern const warptape::kernels::KernelEntry __stop_wt_kernels[] __attribute__((weak, visibility("hidden")));
}

namespace warptape {
namespace {

struct Registry {
  std::mutex mutex;    // of the entries
  std::mutex plugins;  // held while one is opened, which registers entries
  std::array<std::unordered_map<std::string, const kernels::KernelEntry*>, kNumDeviceTypes> entries;
  std::array<DeviceRuntime*, kNumDeviceTypes> runtimes{};
  std::array<std::string, kNumDeviceTypes> failures;  // why a plugin did not open
  std::array<bool, kNumDeviceTypes> in_use{};
  std::array<std::map<std::string, bool>, kNumDeviceTypes> switches;
  std::string folder;
  std::vector<std::string> packages;
  std::set<std::string> used;         // kernels that were looked up
  std::set<std::string> above_level;  // CPU kernels that were built for more than this processor has
};

Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

// The highest instruction set level (kernels/cpu) that this machine runs; WARPTAPE_CPU_LEVEL lowers it, for
// tests.
int machine_level() {
  static const int level = [] {
    int level = 0;
#if defined(__aarch64__)
    level = 1;  // NEON is in every such processor
#elif defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v2")) level = 1;
    if (__builtin_cpu_supports("x86-64-v3")) level = 2;
    if (__builtin_cpu_supports("x86-64-v4")) level = 3;
    if (level == 3 && __builtin_cpu_supports("avx512bf16")) level = 4;
#endif
    return std::min(level, allowed_cpu_level());
  }();
  return level;
}

void add_entries(Registry& r, const kernels::KernelEntry* begin, const kernels::KernelEntry* end) {
  for (auto* e = begin; e != end; ++e) {
    if (!e->function) continue;
    if (e->device == DeviceType::CPU && e->level > machine_level()) {
      r.above_level.insert(e->name);
      continue;
    }
    auto& known = r.entries[static_cast<int>(e->device)][e->name];
    if (!known || e->level > known->level) known = e;
  }
}

std::string no_kernel(const Registry& r, const char* kernel, DeviceType device) {
  std::string text = message(kernel, ": no kernel for device ", name(device));
  if (device == DeviceType::CPU && r.above_level.contains(kernel))
    text +=
        "; it was built for instruction sets that this processor (or WARPTAPE_CPU_LEVEL) lacks. Build for "
        "this one with `pip install --force-reinstall . -C cmake.define.WARPTAPE_CPU_ISAS=AUTO`";
  return text;
}

std::string not_built(DeviceType type) {
  if (type == DeviceType::CUDA)
    return "warptape was installed without its CUDA plugin; install the wheel warptape-cuda of the same "
           "version, or build warptape where a CUDA toolkit is, with "
           "`pip install --force-reinstall . -C cmake.define.WARPTAPE_CUDA=ON`";
  return "there is no plugin for it";
}

// A build of the plugin without a library does not know its switches.
void try_switch(DeviceRuntime& runtime, const std::string& name, bool on) {
  try {
    runtime.set_switch(name.c_str(), on);
  } catch (const ValueError&) {
  }
}

std::string plugin_path(const std::string& name) {
  return registry().folder + "/libwarptape_" + name + ".so";
}

// Empty, or why it cannot be used; `absent` is said where there is no such file. The caller holds `plugins`.
std::string open_library(const std::string& name, const std::string& absent) {
  const std::string path = plugin_path(name);
  void* lib = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    const char* why = dlerror();
    return access(path.c_str(), F_OK) != 0 ? absent : why ? why : "it cannot be opened";
  }
  auto init = reinterpret_cast<const char* (*)(int)>(dlsym(lib, "warptape_plugin_init"));
  const char* problem = init ? init(kPluginAbi) : "it has no warptape_plugin_init";
  return problem ? problem : "";
}

void open_plugin(DeviceType type) {
  Registry& r = registry();
  int slot = static_cast<int>(type);
  if (r.runtimes[slot] || !r.failures[slot].empty()) return;
  r.failures[slot] = open_library(name(type), not_built(type));
  if (r.runtimes[slot])
    for (auto& [name, on] : r.switches[slot]) try_switch(*r.runtimes[slot], name, on);
}

[[noreturn]] void refuse(const char* what) {
  throw NotImplementedError(message("this device has no ", what));
}

}  // namespace

// Out of line so that each class has one type information, in this library.
DeviceMemory::~DeviceMemory() = default;
DeviceStreams::~DeviceStreams() = default;
DeviceCapture::~DeviceCapture() = default;
DeviceProfiling::~DeviceProfiling() = default;
DeviceRuntime::~DeviceRuntime() = default;

uint64_t DeviceCapture::new_pool() { refuse("graphs"); }
void DeviceCapture::begin_capture(int, uint64_t, const char*) { refuse("graphs"); }
GraphHandle DeviceCapture::end_capture(int) { refuse("graphs"); }
bool DeviceCapture::is_capturing() { return false; }
void DeviceCapture::replay(GraphHandle) { refuse("graphs"); }
void DeviceCapture::free_graph(GraphHandle) noexcept {}

void DeviceProfiling::start_activities() { refuse("record of what it did"); }
std::vector<DeviceActivity> DeviceProfiling::stop_activities() { return {}; }
void DeviceProfiling::push_event(uint64_t) {}
void DeviceProfiling::pop_event() {}
int DeviceProfiling::range_push(const char*) { return -1; }
int DeviceProfiling::range_pop() { return -1; }
void DeviceProfiling::mark(const char*) {}

void set_plugin_folder(const char* path) { registry().folder = path; }

void set_package_folders(std::vector<std::string> folders) {
  std::lock_guard lock(registry().mutex);
  registry().packages = std::move(folders);
}
std::vector<std::string> package_folders() {
  std::lock_guard lock(registry().mutex);
  return registry().packages;
}

void register_device_runtime(DeviceType type, DeviceRuntime* runtime) {
  __atomic_store_n(&registry().runtimes[static_cast<int>(type)], runtime, __ATOMIC_RELEASE);
}

void register_kernels(const kernels::KernelEntry* begin, const kernels::KernelEntry* end) {
  std::lock_guard lock(registry().mutex);
  add_entries(registry(), begin, end);
}

std::string open_plugin(const std::string& name, const std::string& absent) {
  std::lock_guard lock(registry().plugins);
  return open_library(name, absent);
}

std::string plugin_build(DeviceType type) {
  std::lock_guard lock(registry().plugins);
  void* lib = dlopen(plugin_path(name(type)).c_str(), RTLD_NOW | RTLD_LOCAL);
  auto build = lib ? static_cast<const char*>(dlsym(lib, "warptape_plugin_build")) : nullptr;
  return build ? build : "";
}

DeviceRuntime* find_runtime(DeviceType type, std::string* why) {
  Registry& r = registry();
  int slot = static_cast<int>(type);
  if (DeviceRuntime* runtime = __atomic_load_n(&r.runtimes[slot], __ATOMIC_ACQUIRE)) return runtime;
  std::lock_guard lock(r.plugins);
  open_plugin(type);
  if (why) *why = r.failures[slot];
  return r.runtimes[slot];
}

DeviceRuntime& runtime_of(DeviceType type) {
  std::string why;
  DeviceRuntime* runtime = find_runtime(type, &why);
  WT_CHECK(runtime, DeviceError, name(type), ": this device cannot be used: ", why,
           "; `python -m warptape.doctor` says what to install");
  bool& in_use = registry().in_use[static_cast<int>(type)];
  if (!__atomic_load_n(&in_use, __ATOMIC_RELAXED)) __atomic_store_n(&in_use, true, __ATOMIC_RELAXED);
  return *runtime;
}

bool device_in_use(DeviceType type) {
  return __atomic_load_n(&registry().in_use[static_cast<int>(type)], __ATOMIC_RELAXED);
}

void set_library_switch(DeviceType type, const char* name, bool on) {
  Registry& r = registry();
  int slot = static_cast<int>(type);
  std::lock_guard lock(r.plugins);
  if (r.runtimes[slot]) try_switch(*r.runtimes[slot], name, on);
  r.switches[slot][name] = on;
}

Device resolve_accelerator(Device d) {
  DeviceRuntime& runtime = runtime_of(d.type);
  if (d.index < 0) return {d.type, static_cast<int8_t>(runtime.current_device())};
  int count = runtime.device_count();
  WT_CHECK(d.index < count, DeviceError, d, ": there is no such device: this machine has ", count,
           " CUDA device", count == 1 ? "" : "s",
           count > 1 ? ", numbered from 0"
           : count   ? ", cuda:0"
                     : "");
  return d;
}

std::vector<std::string> kernels_used() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  return {r.used.begin(), r.used.end()};
}

Allocator& allocator_of(Device device) {
  if (device.is_host()) return cpu_allocator();
  return runtime_of(device.type).allocator(device.index);
}

namespace kernels {

AnyKernel resolve_kernel(const char* kernel, const char* signature, DeviceType device) {
  Registry& r = registry();
  if (device != DeviceType::CPU) runtime_of(device);
  std::lock_guard lock(r.mutex);
  static const bool builtin = (add_entries(r, __start_wt_kernels, __stop_wt_kernels), true);
  (void)builtin;
  auto& table = r.entries[static_cast<int>(device)];
  auto it = table.find(kernel);
  WT_CHECK(it != table.end(), NotImplementedError, no_kernel(r, kernel, device));
  WT_CHECK(std::strcmp(it->second->signature, signature) == 0, NotImplementedError, kernel,
           ": kernel of type ", it->second->signature, " does not fit the slot of type ", signature);
  r.used.insert(kernel);
  return it->second->function;
}

void unhandled_dtype(const char* kernel, DType dtype) {
  throw DtypeError(message(kernel, ": not implemented for ", dtype));
}

void unhandled_size(const char* kernel, size_t bytes) {
  throw DtypeError(message(kernel, ": not implemented for elements of ", bytes, " bytes"));
}

}  // namespace kernels
}  // namespace warptape
