#include "kernels/runtime/services.h"

#include <atomic>

namespace warptape::kernels {
namespace {
std::atomic<Services*> installed{nullptr};
}

Services::~Services() = default;
void Services::check_interrupt() {}
std::string Services::lapack_library() { return {}; }

void install(Services& services) { installed.store(&services); }
Services* services() { return installed.load(std::memory_order_relaxed); }

}  // namespace warptape::kernels
