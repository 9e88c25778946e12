// What the allocators of CUDA devices hold and did, for python/warptape/cuda/_memory_history.py.
#include "bindings/common.h"
#include "bindings/device/cuda.h"
#include "core/device_runtime.h"

namespace py = pybind11;

namespace warptape::bindings {
namespace {

constexpr const char* kActions[] = {
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"};

py::object text_of(const CallStack& stack) {
  return stack ? py::object(py::str(*stack)) : py::object(py::none());
}

// [(address, bytes, stream, small, pool, [(address, bytes, requested, state, stack)])] and
// [(action, address, bytes, stream, pool, microseconds, stack)].
py::tuple memory_snapshot(int index) {
  MemorySnapshot found;
  {
    GilRelease unlocked;
    found = runtime_of(DeviceType::CUDA).memory_snapshot(index);
  }
  py::list segments, history;
  for (const MemorySegmentState& s : found.segments) {
    py::list blocks;
    for (const MemoryBlockState& b : s.blocks)
      blocks.append(py::make_tuple(b.address, b.bytes, b.requested, b.state, text_of(b.stack)));
    segments.append(py::make_tuple(s.address, s.bytes, as_int(s.stream), s.small, s.pool, blocks));
  }
  for (const MemoryHistoryEntry& e : found.history)
    history.append(py::make_tuple(kActions[static_cast<int>(e.action)], e.address, e.bytes, as_int(e.stream),
                                  e.pool, e.time_us, text_of(e.stack)));
  return py::make_tuple(segments, history);
}

void record_memory_history(bool on, int stacks, size_t max_actions, const std::vector<std::string>& skipped,
                           bool clears) {
  MemoryHistoryOptions options{on, static_cast<MemoryHistoryOptions::Stacks>(stacks), max_actions, 0, clears};
  for (uint32_t i = 0; i < std::size(kActions); ++i)
    if (std::find(skipped.begin(), skipped.end(), kActions[i]) != skipped.end()) options.skipped |= 1u << i;
  runtime_of(DeviceType::CUDA).record_memory_history(options);
}

}  // namespace

void bind_memory_history(py::module_& m) {
  m.attr("memory_actions") = std::vector<std::string>(std::begin(kActions), std::end(kActions));
  m.def("memory_snapshot", memory_snapshot);
  m.def("record_memory_history", record_memory_history, py::call_guard<GilRelease>());
}

}  // namespace warptape::bindings
