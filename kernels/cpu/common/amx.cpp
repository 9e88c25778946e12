#include "kernels/cpu/vector/amx.h"

#include <cstdlib>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace warptape::kernels::cpu {
namespace {

#if defined(__x86_64__) && defined(__linux__)
constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25, kBf16 = 1u << 22;  // of CPUID 7, EDX

unsigned features() {
  static const unsigned found = [] {
    const char* asked = std::getenv("WARPTAPE_AMX");
    if (asked && *asked == '0') return 0u;
    unsigned a, b, c, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile)) return 0u;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h, since Linux 5.16
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? d : 0u;
  }();
  return found;
}
#else
constexpr unsigned kInt8 = 1, kBf16 = 1;
unsigned features() { return 0; }
#endif

}  // namespace

bool has_amx_int8() { return features() & kInt8; }
bool has_amx_bf16() { return features() & kBf16; }

}  // namespace warptape::kernels::cpu
