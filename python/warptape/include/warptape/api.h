// The table of warptape/extension.h, and its errors as C++ exceptions.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

#include "warptape/extension.h"
#include "warptape/version.h"

namespace c10 {

// What the runtime raises, and what TORCH_CHECK throws. Python gets the exception of that kind.
class Error : public std::exception {
 public:
  Error(wtx_error kind, std::string text) : kind_(kind), text_(std::move(text)) {}
  explicit Error(std::string text) : Error(WTX_ERROR_RUNTIME, std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const char* what_without_backtrace() const noexcept { return text_.c_str(); }
  const std::string& msg() const { return text_; }
  wtx_error kind() const { return kind_; }

 private:
  wtx_error kind_;
  std::string text_;
};

#define WARPTAPE_ERROR_CLASS(Name, kind)                              \
  class Name : public Error {                                         \
   public:                                                            \
    explicit Name(std::string text) : Error(kind, std::move(text)) {} \
  }
WARPTAPE_ERROR_CLASS(IndexError, WTX_ERROR_INDEX);
WARPTAPE_ERROR_CLASS(ValueError, WTX_ERROR_VALUE);
WARPTAPE_ERROR_CLASS(TypeError, WTX_ERROR_TYPE);
WARPTAPE_ERROR_CLASS(NotImplementedError, WTX_ERROR_NOT_IMPLEMENTED);
WARPTAPE_ERROR_CLASS(OutOfMemoryError, WTX_ERROR_OUT_OF_MEMORY);
WARPTAPE_ERROR_CLASS(LinAlgError, WTX_ERROR_LINALG);
#undef WARPTAPE_ERROR_CLASS

template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (void)(out << ... << parts);
  return out.str();
}

}  // namespace c10

// Hidden: every extension has its own, whatever version it was built for.
namespace warptape {
namespace [[gnu::visibility("hidden")]] extension {

struct Table {
  const char* why = nullptr;  // the runtime refused this extension
  const wtx_api* api;
  Table() : api(wtx_extension_api(WARPTAPE_VERSION, WARPTAPE_INTERFACE, this, &why)) {
    if (!api) text = why;
  }
  std::string text;
};
inline const Table& table() {
  static const Table found;
  return found;
}
inline const wtx_api& api() {
  const Table& found = table();
  if (!found.api) throw c10::Error(found.text);
  return *found.api;
}

inline void check(int status) {
  if (status != 0) throw c10::Error(api().error_kind(), api().error_text());
}

// What f does, or -1 with what it threw as the thread's error: for functions that the runtime calls.
template <class F>
int guarded(F&& f) noexcept {
  try {
    f();
    return 0;
  } catch (const c10::Error& e) {
    api().set_error(e.kind(), e.what());
  } catch (const std::exception& e) {
    api().set_error(WTX_ERROR_RUNTIME, e.what());
  } catch (...) {
    api().set_error(WTX_ERROR_RUNTIME, "unknown C++ exception");
  }
  return -1;
}

}  // namespace extension
}  // namespace warptape
namespace wtx = warptape::extension;
