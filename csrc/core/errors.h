// Typed errors. Each class is mapped to a Python exception of the same name, which derives from what PyTorch
// raises and from what Python expects. A message names the op, what it expected, what it got, and the remedy.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "core/export.h"

namespace warptape {

class WT_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Error() override;
};

#define WT_ERROR_CLASS(Name)         \
  class WT_API Name : public Error { \
   public:                           \
    using Error::Error;              \
    ~Name() override;                \
  }
WT_ERROR_CLASS(ShapeError);   // RuntimeError, ValueError
WT_ERROR_CLASS(DtypeError);   // RuntimeError, TypeError
WT_ERROR_CLASS(DeviceError);  // RuntimeError, ValueError
WT_ERROR_CLASS(IndexError);
WT_ERROR_CLASS(TypeError);
WT_ERROR_CLASS(ValueError);
WT_ERROR_CLASS(NotImplementedError);
WT_ERROR_CLASS(AssertionError);    // where PyTorch's own Python code asserts
WT_ERROR_CLASS(LinAlgError);       // RuntimeError: a matrix that is singular, or not positive definite
WT_ERROR_CLASS(OutOfMemoryError);  // RuntimeError, MemoryError
WT_ERROR_CLASS(DistBackendError);  // a collective failed: a rank died, differed or was late
WT_ERROR_CLASS(DistNetworkError);  // a connection between ranks
WT_ERROR_CLASS(DistStoreError);    // a key did not come in time
WT_ERROR_CLASS(OpaqueError);       // RuntimeError: the data of a tensor that stands for others
#undef WT_ERROR_CLASS

// A Python exception is already set; whoever crosses back into Python returns it unchanged.
class WT_API PythonErrorSet : public std::exception {
 public:
  ~PythonErrorSet() override;
};

// A UserWarning where Python is listening; throws PythonErrorSet when the user made it an error.
WT_API void warn(const std::string& text);

template <class... Parts>
[[gnu::noinline, gnu::cold]] std::string message(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace warptape

// WT_CHECK(condition, ShapeError, "matmul: expected ", a, ", got ", b)
#define WT_CHECK(condition, ErrorClass, ...)                                                               \
  do {                                                                                                     \
    if (__builtin_expect(!(condition), 0)) throw ::warptape::ErrorClass(::warptape::message(__VA_ARGS__)); \
  } while (0)
