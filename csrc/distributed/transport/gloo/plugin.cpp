// The plugin's one door.
#include "core/device_runtime.h"
#include "distributed/transport/gloo/backend.h"

namespace warptape::distributed {
namespace {

std::unique_ptr<Backend> make(const std::shared_ptr<Store>& store, int rank, int size, Milliseconds timeout) {
  return std::make_unique<GlooBackend>(store, rank, size, timeout);
}

}  // namespace
}  // namespace warptape::distributed

extern "C" WT_API const char* warptape_plugin_init(int abi) {
  if (abi != warptape::kPluginAbi)
    return "libwarptape_gloo.so was built for another plugin interface; install both from the same release";
  warptape::distributed::register_backend("gloo", warptape::distributed::make);
  return nullptr;
}
