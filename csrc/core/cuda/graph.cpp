// Graphs: the work that a stream is given is recorded instead of run, and replayed as a whole. What a thread
// allocates meanwhile comes from the graph's pool and stays its own, so that every replay finds its memory.
#include <atomic>
#include <cstring>

#include "core/context.h"
#include "core/cuda/devices.h"
#include "core/cuda/error.h"
#include "core/cuda/runtime.h"
#include "core/errors.h"

namespace warptape::cuda {
namespace {

struct Graph {
  int device;
  uint64_t pool;
  void* numbers;  // device memory: seed and first call of each generator, written before each replay
  CapturedDraws draws;
  cudaGraphExec_t exec = nullptr;
};

struct Capture {
  std::unique_ptr<Graph> graph;
  cudaStream_t stream = nullptr;
};
thread_local Capture capture;

cudaStreamCaptureMode capture_mode(const char* name) {
  if (!std::strcmp(name, "global")) return cudaStreamCaptureModeGlobal;
  if (!std::strcmp(name, "thread_local")) return cudaStreamCaptureModeThreadLocal;
  if (!std::strcmp(name, "relaxed")) return cudaStreamCaptureModeRelaxed;
  throw ValueError(
      message("capture_error_mode: expected 'global', 'thread_local' or 'relaxed', got '", name, "'"));
}

void discard(DeviceAllocator& allocator, std::unique_ptr<Graph> graph) noexcept {
  if (graph->exec) succeeded(cudaGraphExecDestroy(graph->exec));
  allocator.deallocate(graph->numbers, CapturedDraws::kBytes);
  allocator.release_pool(graph->pool);
}

}  // namespace

uint64_t CudaRuntime::new_pool() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

void CudaRuntime::begin_capture(int index, uint64_t pool, const char* mode) {
  auto cuda_mode = capture_mode(mode);
  DeviceAllocator& allocator = device_allocator(index);
  WT_CHECK(!capture.graph, DeviceError,
           "graph capture: this thread captures a graph already; end that first");
  cudaStream_t stream = as_stream(cuda::current_stream(index));
  WT_CHECK(stream, DeviceError,
           "graph capture: the default stream cannot be captured; make another one current, as "
           "warptape.cuda.graph() does");
  kernels::cuda::use_device(index);
  void* numbers = allocator.allocate(CapturedDraws::kBytes);
  std::unique_ptr<Graph> graph(
      new Graph{index, pool, numbers, CapturedDraws(static_cast<const uint64_t*>(numbers))});
  allocator.begin_capture(pool);
  count_capture(+1);
  cudaError_t error = cudaStreamBeginCapture(stream, cuda_mode);
  if (error != cudaSuccess) {
    count_capture(-1);
    allocator.end_capture();
    discard(allocator, std::move(graph));
    raise_error(error, "graph capture");
  }
  own_thread_state().captured_draws = &graph->draws;
  capture = {std::move(graph), stream};
}

GraphHandle CudaRuntime::end_capture(int index) {
  WT_CHECK(capture.graph && capture.graph->device == index, DeviceError,
           "graph capture: this thread captures no graph on cuda:", index, "; begin one first");
  auto [graph, stream] = std::exchange(capture, {});
  DeviceAllocator& allocator = device_allocator(index);
  kernels::cuda::use_device(index);
  cudaGraph_t recorded = nullptr;
  cudaError_t error = cudaStreamEndCapture(stream, &recorded);
  count_capture(-1);
  allocator.end_capture();
  own_thread_state().captured_draws = nullptr;
  graph->draws.finish();
  if (error == cudaSuccess) error = cudaGraphInstantiate(&graph->exec, recorded, 0);
  if (recorded) succeeded(cudaGraphDestroy(recorded));
  if (error != cudaSuccess) {
    discard(allocator, std::move(graph));
    raise_error(error, "graph capture");
  }
  return graph.release();
}

bool CudaRuntime::is_capturing() {
  int index = cuda::current_device();
  StreamHandle stream = cuda::current_stream(index);
  if (!stream || !any_capture()) return false;
  kernels::cuda::use_device(index);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(as_stream(stream), &status), "is_current_stream_capturing");
  return status != cudaStreamCaptureStatusNone;
}

void CudaRuntime::replay(GraphHandle handle) {
  auto* graph = static_cast<Graph*>(handle);
  WT_CHECK(!capture.graph, DeviceError, "graph replay: this thread captures another graph; end that first");
  kernels::cuda::use_device(graph->device);
  StreamHandle stream = cuda::current_stream(graph->device);
  uint64_t numbers[CapturedDraws::kBytes / sizeof(uint64_t)];
  if (size_t bytes = graph->draws.advance(numbers)) {
    // From pageable memory: the call returns when the numbers are staged, and they arrive in stream order.
    check(cudaMemcpyAsync(graph->numbers, numbers, bytes, cudaMemcpyHostToDevice, as_stream(stream)),
          "graph replay");
    device_allocator(graph->device).record_stream(graph->numbers, stream);
  }
  check(cudaGraphLaunch(graph->exec, as_stream(stream)), "graph replay");
  if (kernels::cuda::launch_blocking) cuda::synchronize_stream(graph->device, stream, "graph replay");
}

void CudaRuntime::free_graph(GraphHandle handle) noexcept {
  if (!handle) return;
  std::unique_ptr<Graph> graph(static_cast<Graph*>(handle));
  DeviceAllocator& allocator = *allocators_[static_cast<size_t>(graph->device)];
  discard(allocator, std::move(graph));
}

}  // namespace warptape::cuda
