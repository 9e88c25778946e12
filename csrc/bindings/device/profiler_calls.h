// The calls of Python's functions in one thread, for a profile with stacks, or those of modules alone.
//
// The interpreter tells of each call and return by the hook of sys.setprofile, which is set from the moment
// the thread joins until the profile is over. Written and read with the GIL.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "bindings/common.h"
#include "core/profiler.h"

#include <pybind11/stl.h>

namespace warptape::bindings {

struct PythonCall {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t code;    // which of PythonCalls::codes
  uint32_t parent;  // the call that it lies in, or kNone
  int32_t module;   // which of PythonCalls::modules, or -1 for a plain function
  int64_t start;    // nanoseconds, as of ProfilerEvent
  int64_t end;      // 0 while it is open
};

class PythonCalls {
 public:
  static constexpr size_t kMaxCalls = size_t{1} << 20;

  // Of the calling thread; null where another profiler has its hook.
  static std::shared_ptr<void> watch(const ProfilerOptions& options);
  // No more calls are noted; those that are open end now.
  void stop();
  // (codes, modules, how many calls were dropped, [(code, parent, module, start, end)]); after it nothing of
  // Python is held, so that the record may go without the GIL.
  pybind11::tuple take();

 private:
  struct Open {
    uint32_t call;  // kNone for one that is not noted
    PyObject* code;
  };

  static int on_event(PyObject* capsule, PyFrameObject* frame, int what, PyObject*);
  void begin_those_that_run();
  void begin(PyFrameObject* frame, Object code);
  void end(PyObject* code);
  uint32_t number_of(Object code);
  int32_t module_of(PyFrameObject* frame);

  bool modules_alone_ = false, closed_ = false;
  std::vector<PythonCall> calls_;
  std::vector<Object> codes_, modules_;
  std::vector<bool> hidden_;  // by code
  size_t dropped_ = 0;        // beyond kMaxCalls
  std::vector<Open> open_;
  std::unordered_map<PyObject*, uint32_t> code_numbers_;
  std::unordered_map<PyObject*, int32_t> module_numbers_;
  PyThreadState* thread_ = nullptr;
};

// The code of nn.Module.__call__, by which calls of modules are known, and the files whose functions are not
// noted: the profile's own, which begin and end ranges.
void set_profiled_code(PyObject* module_call, std::vector<std::string> hidden_files);

}  // namespace warptape::bindings
