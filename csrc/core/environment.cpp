#include "core/environment.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/errors.h"

namespace warptape {
namespace {

// In the order of cmake/Kernels.cmake; neon is the one level of aarch64.
constexpr const char* kLevels[] = {"baseline", "sse42", "avx2", "avx512", "avx512bf16"};
constexpr const char* kLevelNames = "0 to 4, baseline, sse42, avx2, avx512, avx512bf16 or neon";

// An unset variable and an empty one are the same.
std::string_view value_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_integer(std::string_view text, int64_t low) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() && n >= low;
}

int level_named(std::string_view text) {
  for (int level = 0; level < 5; ++level)
    if (text == kLevels[level] || (text.size() == 1 && text[0] == '0' + level)) return level;
  return text == "neon" ? 1 : -1;
}

void check(const char* name, const char* expected, bool (*fits)(std::string_view)) {
  const std::string_view text = value_of(name);
  WT_CHECK(text.empty() || fits(text), ValueError, "environment variable ", name, ": expected ", expected,
           ", got '", text, "'; correct it, or unset it for the default");
}

bool is_switch(std::string_view text) { return text == "0" || text == "1"; }
bool is_natural(std::string_view text) { return is_integer(text, 0); }

}  // namespace

int allowed_cpu_level() {
  const char* name = "WARPTAPE_CPU_LEVEL";
  check(name, kLevelNames, [](std::string_view text) { return level_named(text) >= 0; });
  const std::string_view text = value_of(name);
  return text.empty() ? INT32_MAX : level_named(text);
}

void check_environment() {
  allowed_cpu_level();
  check("WARPTAPE_NUM_THREADS", "a number of threads, at least 1",
        [](std::string_view text) { return is_integer(text, 1); });
  check("WARPTAPE_CPU_CACHE_MB", "a number of megabytes", is_natural);
  check("WARPTAPE_ATTEMPT", "how often the job was restarted", is_natural);
  for (const char* name :
       {"WARPTAPE_AMX", "WARPTAPE_GLOO", "WARPTAPE_LAUNCH_BLOCKING", "WARPTAPE_NO_CUDA_MEMORY_CACHING"})
    check(name, "0 or 1", is_switch);
  check("WARPTAPE_DROPOUT", "pytorch or warptape",
        [](std::string_view text) { return text == "pytorch" || text == "warptape"; });
  check("WARPTAPE_ATTENTION", "measured, cudnn, own, mma or plain", [](std::string_view text) {
    for (const char* kernels : {"measured", "cudnn", "own", "mma", "plain"})
      if (text == kernels) return true;
    return false;
  });
  check("WARPTAPE_GROUPED_MM", "wgmma or mma",
        [](std::string_view text) { return text == "wgmma" || text == "mma"; });
}

}  // namespace warptape
