// What a program above the library supplies: Python, by the bindings. Handed down once, when the module
// starts; in a C++ program without one the defaults here serve.
#pragma once

#include <memory>
#include <string>

#include "core/export.h"

struct wtx_python;

namespace warptape {

class Storage;
class TapeFrontend;
struct ProfilerOptions;

class WT_API Frontend {
 public:
  virtual ~Frontend();

  enum class Warning { User, Tracer };
  // Throws PythonErrorSet where the user made the warning an error.
  virtual void warn(const char* text, Warning category = Warning::User);

  // ---- where a thread is ----
  // The calling thread's stack, innermost frame first, a line each; empty in a thread that never ran Python.
  // Where the thread has released the GIL it is acquired for it if `waits`, so hold no lock for which others
  // wait with the GIL, and else the stack is empty.
  virtual std::string stack(bool waits);
  // The same as Python prints it, outermost frame first, for anomaly mode.
  virtual std::string traceback();
  // "train.py:30 in step": the innermost frame outside of warptape.
  virtual std::string call_site();
  // From now on records the calls of functions in this thread, until whoever has the result stops it.
  virtual std::shared_ptr<void> watch_calls(const ProfilerOptions& options);

  // ---- the lock that Python holds while it calls ----
  virtual void* release_gil();  // null where the thread does not hold it
  virtual void reacquire_gil(void* state);

  // ---- objects ----
  // A tensor that owns its object (TensorImpl::python) goes away.
  virtual void release_object(void* object);
  // Whether code that the runtime does not see still has memory that was exported to it.
  virtual bool accesses(const Storage& exported);
  // The part of the interface for extensions (capi/extension/extension.h) that knows Python's objects.
  virtual const wtx_python* extension_functions();
  // The part that knows tensors (autograd/tape.h).
  virtual TapeFrontend* tape();
};

WT_API Frontend& frontend();
// The object must outlive all threads.
WT_API void install(Frontend& frontend);

// The thread does not hold the GIL while it lives.
class WithoutGil {
 public:
  WithoutGil() : state_(frontend().release_gil()) {}
  ~WithoutGil() {
    if (state_) frontend().reacquire_gil(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_;
};

}  // namespace warptape
