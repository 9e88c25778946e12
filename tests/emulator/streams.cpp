// Streams, events and graphs. A stream is a queue of work that runs when somebody waits for it; an event is a
// point in a queue; a graph is a list of work that a replay puts into a queue.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>
#include <thread>

#include "internal.h"

namespace emulator {
namespace {

auto& g_streams = *new std::set<CUstream_st*>;  // those created, without the default ones
auto& g_events = *new std::set<CUevent_st*>;
auto& g_captures = *new std::vector<std::shared_ptr<Capture>>;  // the active ones
thread_local cudaStreamCaptureMode t_mode = cudaStreamCaptureModeGlobal;

size_t this_thread() { return std::hash<std::thread::id>()(std::this_thread::get_id()); }

// Runs the first task of a stream or, where that waits, a step of what it waits for: callers try again.
void run_head(CUstream_st* stream) {
  if (stream->queue.empty() || stream->waiting) return pause();
  if (auto wait = stream->queue.front().wait; wait && !wait->done) {
    stream->waiting = true;
    wait->stream ? run_head(wait->stream) : wait->help();
    stream->waiting = false;
    return;
  }
  Task task = std::move(stream->queue.front());
  stream->queue.pop_front();
  if (!task.run) return;
  Access access;
  task.run();
}
void run_until(const std::shared_ptr<Record>& record) {
  while (!record->done) run_head(record->stream);
}

// In the shuffled order other streams may get ahead of the one that is waited for.
void run_others() {
  if (order() != Order::Shuffled) return;
  for (CUstream_st* other : g_streams)
    if (!other->queue.empty() && random_bits() % 4 == 0) run_head(other);
}

cudaError_t create(cudaStream_t* out, unsigned flags, int priority) {
  return call([&] {
    *out = new CUstream_st;
    (*out)->device = current_device();
    (*out)->flags = flags;
    (*out)->priority = std::clamp(priority, -5, 0);
    g_streams.insert(*out);
    return cudaSuccess;
  });
}

void end(Capture& capture) {
  capture.active = false;
  for (CUstream_st* s : capture.streams) {
    s->capture = nullptr;
    s->clock.clear();
  }
  std::erase_if(g_captures, [&](auto& c) { return c.get() == &capture; });
}

}  // namespace

CUstream_st* default_stream(int device) {
  static auto& streams = *[] {
    auto* all = new std::vector<CUstream_st>(device_count());
    for (int i = 0; i < device_count(); ++i) (*all)[i].device = i;
    return all;
  }();
  return &streams[device];
}

CUstream_st* resolve(cudaStream_t stream) {
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
    return default_stream(current_device());
  return g_streams.count(stream) ? stream : nullptr;
}

cudaError_t invalidate(CUstream_st* stream) {
  stream->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t unsafe_call() {
  bool refused = false;
  for (auto& c : g_captures) {
    bool own = c->thread == this_thread() && c->mode != cudaStreamCaptureModeRelaxed;
    bool others = c->mode == cudaStreamCaptureModeGlobal && t_mode == cudaStreamCaptureModeGlobal;
    if (t_mode == cudaStreamCaptureModeRelaxed || !(own || others)) continue;
    c->invalid = refused = true;
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

bool capturing(int device) {
  bool found = false;
  for (auto& c : g_captures)
    for (CUstream_st* s : c->streams)
      if (s->device == device) c->invalid = found = true;
  return found;
}

cudaError_t push(CUstream_st* stream, Task task) {
  if (!stream->capture) {
    static size_t number = 0;
    stream->order[stream] = ++number;
    stream->queue.push_back(std::move(task));
    return cudaSuccess;
  }
  if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  stream->capture->work.push_back(std::move(task.run));
  ++stream->clock[stream];
  return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t handle, Work work, const std::vector<const void*>& used, const char* name) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    const cudaError_t e = push(stream, {std::move(work), nullptr});
    note_uses(stream, used, name);
    return e;
  });
}

void step(CUstream_st* stream) { run_head(stream); }
cudaError_t enqueue_wait(cudaStream_t handle, std::shared_ptr<Record> record) {
  return call([&] { return push(resolve(handle), {nullptr, std::move(record)}); });
}
void drain(CUstream_st* stream) {
  Access access;
  while (!stream->queue.empty()) {
    run_head(stream);
    run_others();
  }
  host_waited(stream->order);
}
void drain_device(int device) {
  Access access;
  drain(default_stream(device));
  for (CUstream_st* s : g_streams)
    if (s->device == device) drain(s);
}

}  // namespace emulator

using namespace emulator;

// ---- streams ----
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create(stream, cudaStreamDefault, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create(stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create(stream, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call([&] {
    if (!g_streams.count(handle)) return cudaErrorInvalidResourceHandle;
    if (handle->capture) return invalidate(handle);
    drain(handle);
    g_streams.erase(handle);
    delete handle;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return invalidate(stream);
    drain(stream);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return invalidate(stream);
    if (stream->queue.empty()) return host_waited(stream->order), cudaSuccess;
    run_head(stream);
    return cudaErrorNotReady;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream || !g_events.count(event)) return cudaErrorInvalidResourceHandle;
    auto record = event->last;
    if (!record) return cudaSuccess;
    auto from = record->capture;
    if (!from && !stream->capture)
      return merge(stream->order, record->clock), push(stream, {nullptr, record});
    if (from && !from->active) return cudaErrorCapturedEvent;
    if (from && from->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!from) return invalidate(stream), cudaErrorStreamCaptureIsolation;
    if (!stream->capture) {
      if (stream == default_stream(stream->device))
        return from->invalid = true, cudaErrorStreamCaptureImplicit;
      stream->capture = from;
      from->streams.push_back(stream);
    } else if (stream->capture != from) {
      from->invalid = true;
      return invalidate(stream), cudaErrorStreamCaptureMerge;
    }
    merge(stream->clock, record->clock);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    *device = stream->device;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    *priority = stream->priority;
    return cudaSuccess;
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return enqueue(stream, [=] { function(data); });
}

// ---- events ----
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call([&] {
    *event = new CUevent_st{current_device(), flags, nullptr};
    g_events.insert(*event);
    return cudaSuccess;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call([&] {
    if (!g_events.erase(event)) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream || !g_events.count(event) || event->device != stream->device)
      return cudaErrorInvalidResourceHandle;
    auto record = std::make_shared<Record>();
    record->stream = stream;
    if (stream->capture) {
      if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
      record->capture = stream->capture;
      record->clock = stream->clock;
    } else {
      record->clock = stream->order;
      stream->queue.push_back({[record] {
                                 record->done = true;
                                 record->time = std::chrono::steady_clock::now();
                               },
                               nullptr});
    }
    event->last = record;
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call([&] {
    if (!g_events.count(event)) return cudaErrorInvalidResourceHandle;
    if (auto e = unsafe_call(); e != cudaSuccess) return e;
    if (!event->last) return cudaSuccess;
    if (event->last->capture) return cudaErrorCapturedEvent;
    if (event->last->done) return host_waited(event->last->clock), cudaSuccess;
    run_head(event->last->stream);
    return cudaErrorNotReady;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&] {
    if (!g_events.count(event)) return cudaErrorInvalidResourceHandle;
    if (!event->last) return cudaSuccess;
    if (event->last->capture) return cudaErrorCapturedEvent;
    Access access;
    run_others();
    run_until(event->last);
    host_waited(event->last->clock);
    return cudaSuccess;
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call([&] {
    for (cudaEvent_t e : {start, end})
      if (!g_events.count(e) || !e->last || e->last->capture || e->flags & cudaEventDisableTiming)
        return cudaErrorInvalidResourceHandle;
    if (start->device != end->device) return cudaErrorInvalidResourceHandle;
    if (!start->last->done || !end->last->done) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->last->time - start->last->time).count();
    return cudaSuccess;
  });
}

// ---- graphs ----
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream == default_stream(stream->device)) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture) return cudaErrorIllegalState;
    static unsigned long long ids = 0;
    auto capture = std::make_shared<Capture>();
    capture->id = ++ids;
    capture->mode = mode;
    capture->thread = this_thread();
    capture->origin = stream;
    capture->streams = {stream};
    stream->capture = capture;
    stream->clock.clear();
    g_captures.push_back(capture);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call([&] {
    *graph = nullptr;
    CUstream_st* stream = resolve(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    auto capture = stream->capture;
    if (!capture) return cudaErrorIllegalState;
    if (capture->origin != stream) return capture->invalid = true, cudaErrorStreamCaptureUnmatched;
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != this_thread())
      return capture->invalid = true, cudaErrorStreamCaptureWrongThread;
    bool joined = true;
    for (CUstream_st* s : capture->streams) joined &= stream->clock[s] >= s->clock[s];
    end(*capture);
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{std::make_shared<std::vector<Work>>(std::move(capture->work))};
    return cudaSuccess;
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(handle, status);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (graph || dependencies || edges || count) return cudaErrorNotSupported;
    *status = !stream->capture           ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    if (id && stream->capture) *id = stream->capture->id;
    return cudaSuccess;
  });
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, t_mode);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes) return remember(cudaErrorNotSupported);
  *count = graph->work->size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return call([&] {
    *exec = new CUgraphExec_st{current_device(), graph->work};
    return cudaSuccess;
  });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  return call([&] {
    CUstream_st* stream = resolve(handle);
    if (!stream || stream->device != exec->device) return cudaErrorInvalidResourceHandle;
    for (size_t i = 0; i < exec->work->size(); ++i)  // the list lives on if the graph is destroyed meanwhile
      if (auto e = push(stream, {[work = exec->work, i] { (*work)[i](); }, nullptr}); e != cudaSuccess)
        return e;
    return cudaSuccess;
  });
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return call([] { return cudaSuccess; });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  auto held = lock();
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  auto held = lock();
  delete graph;
  return cudaSuccess;
}
