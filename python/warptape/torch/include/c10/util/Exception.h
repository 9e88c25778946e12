// Checks and warnings.
#pragma once

#include "c10/macros/Macros.h"
#include "warptape/api.h"

namespace c10 {
namespace detail {

template <class E = Error, class... Parts>
[[noreturn]] C10_NOINLINE void fail(const char* otherwise, const Parts&... parts) {
  if constexpr (sizeof...(Parts) == 0)
    throw E(otherwise);
  else
    throw E(str(parts...));
}

template <class... Parts>
void warn(const Parts&... parts) {
  wtx::check(wtx::api().warn(str(parts...).c_str()));
}

}  // namespace detail
}  // namespace c10

// As PyTorch's they are whole statements: a semicolon may be missing behind them.
#define WARPTAPE_CHECK(E, condition, ...)                                                        \
  if (C10_UNLIKELY(!(condition))) {                                                              \
    ::c10::detail::fail<E>("Expected " #condition " to be true, but got false.", ##__VA_ARGS__); \
  }
#define TORCH_CHECK(condition, ...) WARPTAPE_CHECK(::c10::Error, condition, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) WARPTAPE_CHECK(::c10::ValueError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(condition, ...) WARPTAPE_CHECK(::c10::IndexError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(condition, ...) WARPTAPE_CHECK(::c10::TypeError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_LINALG(condition, ...) WARPTAPE_CHECK(::c10::LinAlgError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(condition, ...) \
  WARPTAPE_CHECK(::c10::NotImplementedError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_WITH(error, condition, ...) WARPTAPE_CHECK(::c10::error, condition, ##__VA_ARGS__)
#define WARPTAPE_CHECK_OP(a, b, op)                                                                     \
  do {                                                                                                  \
    const auto& warptape_a = (a);                                                                       \
    const auto& warptape_b = (b);                                                                       \
    if (C10_UNLIKELY(!(warptape_a op warptape_b)))                                                      \
      ::c10::detail::fail("", "Check failed: " #a " " #op " " #b " (", warptape_a, " vs. ", warptape_b, \
                          "). ");                                                                       \
  } while (false)
#define TORCH_CHECK_EQ(a, b) WARPTAPE_CHECK_OP(a, b, ==)
#define TORCH_CHECK_NE(a, b) WARPTAPE_CHECK_OP(a, b, !=)
#define TORCH_CHECK_LT(a, b) WARPTAPE_CHECK_OP(a, b, <)
#define TORCH_CHECK_LE(a, b) WARPTAPE_CHECK_OP(a, b, <=)
#define TORCH_CHECK_GT(a, b) WARPTAPE_CHECK_OP(a, b, >)
#define TORCH_CHECK_GE(a, b) WARPTAPE_CHECK_OP(a, b, >=)
#define TORCH_INTERNAL_ASSERT(condition, ...)                                                \
  if (C10_UNLIKELY(!(condition))) {                                                          \
    ::c10::detail::fail("", #condition " INTERNAL ASSERT FAILED at " __FILE__ ":", __LINE__, \
                        ". ", ##__VA_ARGS__);                                                \
  }
#ifdef NDEBUG
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(...) static_cast<void>(0)
#else
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(...) TORCH_INTERNAL_ASSERT(__VA_ARGS__)
#endif
#define TORCH_WARN(...) ::c10::detail::warn(__VA_ARGS__)
#define TORCH_WARN_ONCE(...)                                               \
  do {                                                                     \
    static bool warptape_warned = false;                                   \
    if (!warptape_warned) warptape_warned = true, TORCH_WARN(__VA_ARGS__); \
  } while (false)
#define C10_THROW_ERROR(type, text) throw ::c10::type(text)
#define AT_ERROR(...) ::c10::detail::fail("error", ##__VA_ARGS__)
#define AT_ASSERT(...) TORCH_INTERNAL_ASSERT(__VA_ARGS__)
#define AT_ASSERTM(condition, ...) TORCH_CHECK(condition, ##__VA_ARGS__)
#define AT_WARN(...) TORCH_WARN(__VA_ARGS__)
