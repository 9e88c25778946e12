#include "distributed/transport/nccl/backend.h"

#include <algorithm>
#include <map>

#include "core/cuda/devices.h"
#include "core/cuda/error.h"
#include "core/cuda/streams.h"
#include "kernels/runtime/interrupt.h"
#include "tensor/factory.h"

namespace warptape::distributed {
namespace {

// Streams of groups that were left, by device: an allocator remembers whose memory was used on them.
std::mutex streams_mutex;
std::multimap<int, cudaStream_t>& left_streams() {
  static auto* all = new std::multimap<int, cudaStream_t>;
  return *all;
}

cudaStream_t take_stream(int device) {
  std::lock_guard lock(streams_mutex);
  if (auto at = left_streams().find(device); at != left_streams().end())
    return left_streams().extract(at).mapped();
  int least = 0, greatest = 0;
  cudaStream_t made = nullptr;
  cuda::check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "nccl");
  cuda::check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, greatest), "nccl");
  return made;
}

cudaEvent_t new_event() {
  cudaEvent_t made = nullptr;
  cuda::check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "nccl");
  return made;
}

// As which NCCL combines it; bool as bytes of 0 and 1. It has nothing for int16.
ncclDataType_t type_of(DType d) {
  switch (d) {
    case DType::Int8:
      return ncclInt8;
    case DType::Int32:
      return ncclInt32;
    case DType::Int64:
      return ncclInt64;
    case DType::Float16:
      return ncclFloat16;
    case DType::BFloat16:
      return ncclBfloat16;
    case DType::Float32:
      return ncclFloat32;
    case DType::Float64:
      return ncclFloat64;
    default:
      return ncclUint8;
  }
}

ncclRedOp_t op_of(ReduceOp op, DType d) {
  const bool truth = d == DType::Bool;
  switch (op) {
    case ReduceOp::Product:
      return truth ? ncclMin : ncclProd;
    case ReduceOp::Min:
      return ncclMin;
    case ReduceOp::Max:
      return ncclMax;
    case ReduceOp::Avg:
      return ncclAvg;
    default:
      return truth ? ncclMax : ncclSum;
  }
}

size_t count_of(const Block& b) { return static_cast<size_t>(b.bytes); }

}  // namespace

NcclBackend::NcclBackend(const std::shared_ptr<Store>& store, int rank, int size)
    : store_(store), rank_(rank), size_(size), watchdog_(std::make_shared<Watchdog>(store, rank, size)) {}

NcclBackend::~NcclBackend() { close(); }

void NcclBackend::close() {
  watchdog_->close();
  if (!communicator_) return;
  const int device = communicator_->device();
  communicator_ = nullptr;
  cuda::succeeded(cudaEventDestroy(before_));
  std::lock_guard lock(streams_mutex);
  left_streams().emplace(device, stream_);
}

void NcclBackend::run(const Collective& call, uint64_t, const std::string&, Milliseconds) {
  throw Error(message("nccl: ", name_of(call.op), " runs on a stream"));
}
std::shared_ptr<Transfer> NcclBackend::post(const Collective& call, const std::string&) {
  throw Error(message("nccl: ", name_of(call.op), " runs on a stream"));
}

void NcclBackend::poll() {
  watchdog_->check();
  kernels::cpu::poll_interrupt();
}

// What NCCL cannot do.
void NcclBackend::check(const StreamCall& q) const {
  const Collective& c = q.call;
  const char* op = name_of(c.op);
  if (c.info().reduces()) {
    WT_CHECK(c.reduce < ReduceOp::BitAnd, ValueError, op, ": NCCL does not support ", name_of(c.reduce),
             "; gather the tensors and combine them, or make the call on CPU tensors");
    WT_CHECK(c.outputs[0].dtype() != DType::Int16, DtypeError, op,
             ": NCCL does not reduce int16; use int32, or make the call on CPU tensors");
  }
  if (is_point_to_point(c.op)) {
    WT_CHECK(c.root != kAnyRank, ValueError, op, ": NCCL cannot receive from any rank; give src");
    WT_CHECK(c.tag == 0, ValueError, op, ": NCCL has no tags (got ", c.tag,
             "): messages between two ranks match in order");
  }
  const Tensor* any = c.any_tensor();
  WT_CHECK(!any || !communicator_ || any->device().index == communicator_->device(), DeviceError, op,
           ": the group is on cuda:", communicator_ ? communicator_->device() : 0, ", got ", *any,
           "; a rank has one device in a group");
  WT_CHECK(!runtime_of(DeviceType::CUDA).is_capturing(), NotImplementedError, op,
           ": calls between ranks cannot be captured into a graph yet");
}

void NcclBackend::connect(int device, const StreamCall& q) {
  if (communicator_) return;
  auto made = std::make_shared<Communicator>(rank_, size_, device);
  try {
    made->connect(*store_, Clock::now() + q.timeout, [this] { poll(); });
  } catch (const DistBackendError& e) {
    made->abort();
    watchdog_->fail(AbortReason::Timeout, message(distributed::describe(q.call), " at ", q.site, " on rank ",
                                                  rank_, ": ", e.what()));
    watchdog_->check();
  } catch (...) {
    made->abort();
    throw;
  }
  stream_ = take_stream(device);
  before_ = new_event();
  communicator_ = made;
  watchdog_->watch(made);
}

std::shared_ptr<NcclCall> NcclBackend::take_up(StreamCall& q) {
  auto t = std::make_shared<NcclCall>();
  t->header = header_of(q.call, q.sequence, q.site);
  t->source = is_point_to_point(q.call.op) ? q.call.root : kAnyRank;
  t->rank = rank_, t->device = communicator_->device(), t->timeout = q.timeout, t->begin = Clock::now();
  t->ended = std::move(q.ended);
  t->end = new_event();
  if (q.call.op == CollectiveOp::Barrier) {
    t->host_waits = true;
    q.call.op = CollectiveOp::AllReduce;
    const int64_t one[] = {1};
    const Device here{DeviceType::CUDA, static_cast<int8_t>(t->device)};
    q.call.outputs.push_back(empty(one, {DType::Int32, here}));
    raw_fill(q.call.outputs[0], 0);
  }
  return t;
}

std::vector<std::shared_ptr<Transfer>> NcclBackend::start(std::vector<StreamCall> calls) {
  std::lock_guard making(mutex_);
  watchdog_->check();
  for (const StreamCall& q : calls) check(q);
  const Tensor* any = calls[0].call.any_tensor();
  DeviceRuntime& runtime = runtime_of(DeviceType::CUDA);
  connect(any ? any->device().index : runtime.current_device(), calls[0]);
  const int device = communicator_->device();
  kernels::cuda::use_device(device);
  std::vector<std::shared_ptr<NcclCall>> taken;
  for (StreamCall& q : calls) {
    taken.push_back(take_up(q));
    for (const auto* list : {&q.call.inputs, &q.call.outputs})
      for (const Tensor& t : *list) runtime.record_stream(t.data(), device, stream_);
    for (auto& [to, from] : q.copies) runtime.record_stream(to.data(), device, stream_);
  }
  cuda::check(cudaEventRecord(before_, cuda::as_stream(cuda::current_stream(device))), "nccl");
  cuda::check(cudaStreamWaitEvent(stream_, before_, 0), "nccl");
  for (auto& t : taken) watchdog_->add(t);
  issue(calls, taken);
  return {taken.begin(), taken.end()};
}

// From here on a failure ends the group: the other ranks may be in the call.
void NcclBackend::issue(const std::vector<StreamCall>& calls,
                        const std::vector<std::shared_ptr<NcclCall>>& taken) {
  auto all = [&](ncclComm_t comm) {
    for (const StreamCall& q : calls)
      if (auto r = issue(q.call, comm); r != ncclSuccess && r != ncclInProgress) return r;
    return ncclSuccess;
  };
  auto abort_group = [&](const char* what) {
    watchdog_->fail(AbortReason::Requested, message(taken[0]->text(), ": ", what));
  };
  try {
    communicator_->issue(all, [this] { poll(); });
    finish(calls, taken);
  } catch (const PythonErrorSet&) {
    abort_group("the rank was interrupted");
    throw;
  } catch (const std::exception& e) {
    abort_group(e.what());
    watchdog_->check();
    throw;
  }
}

void NcclBackend::finish(const std::vector<StreamCall>& calls,
                         const std::vector<std::shared_ptr<NcclCall>>& taken) {
  struct Current {  // the stream, for this thread
    Current(int d, cudaStream_t s) : device(d), before(cuda::current_stream(d)) {
      cuda::set_current_stream(d, s);
    }
    ~Current() { cuda::set_current_stream(device, before); }
    const int device;
    const StreamHandle before;
  } here(communicator_->device(), stream_);
  for (const StreamCall& q : calls)
    for (auto& [to, from] : q.copies) raw_copy(to, from);
  for (auto& t : taken) {
    cuda::check(cudaEventRecord(t->end, stream_), "nccl");
    t->issued = true;
  }
}

// Within a group of NCCL's. What only moves, moves as bytes.
ncclResult_t NcclBackend::issue(const Collective& c, ncclComm_t comm) const {
  const Nccl& n = nccl();
  ncclResult_t result = ncclSuccess;
  auto note = [&](ncclResult_t r) {
    if (result == ncclSuccess || result == ncclInProgress) result = r;
  };
  const Tensor* any = c.any_tensor();
  const auto type = type_of(any->dtype());
  const auto op = op_of(c.reduce, any->dtype());
  const bool single = c.inputs.size() == 1 && c.outputs.size() == 1;
  switch (c.op) {
    case CollectiveOp::Broadcast:
      for (const Tensor& t : c.outputs)
        note(n.Broadcast(t.data(), t.data(), count_of(whole(t)), ncclInt8, c.root, comm, stream_));
      break;
    case CollectiveOp::AllReduce:
      for (const Tensor& t : c.outputs)
        note(n.AllReduce(t.data(), t.data(), static_cast<size_t>(t.numel()), type, op, comm, stream_));
      break;
    case CollectiveOp::Reduce:
      for (const Tensor& t : c.outputs)
        note(n.Reduce(t.data(), t.data(), static_cast<size_t>(t.numel()), type, op, c.root, comm, stream_));
      break;
    case CollectiveOp::AllGather: {
      const Block in = whole(c.inputs[0]);
      if (single) {
        note(n.AllGather(in.data, c.outputs[0].data(), count_of(in), ncclInt8, comm, stream_));
        break;
      }
      for (int r = 0; r < size_; ++r)
        note(n.Broadcast(in.data, c.outputs[static_cast<size_t>(r)].data(), count_of(in), ncclInt8, r, comm,
                         stream_));
      break;
    }
    case CollectiveOp::ReduceScatter: {
      const Tensor& out = c.outputs[0];
      const auto numel = static_cast<size_t>(out.numel());
      if (single) {
        note(n.ReduceScatter(c.inputs[0].data(), out.data(), numel, type, op, comm, stream_));
        break;
      }
      for (int r = 0; r < size_; ++r)
        note(
            n.Reduce(c.inputs[static_cast<size_t>(r)].data(), out.data(), numel, type, op, r, comm, stream_));
      break;
    }
    default:
      note(issue_exchange(c, comm));
  }
  return result;
}

// Every call that only moves data, and Send and Recv. Nothing is no message, as both ends see.
ncclResult_t NcclBackend::issue_exchange(const Collective& c, ncclComm_t comm) const {
  const Exchange blocks = exchange_of(c, size_);
  ncclResult_t result = ncclSuccess;
  auto note = [&](ncclResult_t r) {
    if (result == ncclSuccess || result == ncclInProgress) result = r;
  };
  for (int r = 0; r < size_; ++r) {
    const Block &to = blocks.to[static_cast<size_t>(r)], &from = blocks.from[static_cast<size_t>(r)];
    if (to.bytes) note(nccl().Send(to.data, count_of(to), ncclInt8, r, comm, stream_));
    if (from.bytes) note(nccl().Recv(from.data, count_of(from), ncclInt8, r, comm, stream_));
  }
  return result;
}

bool NcclBackend::done(Transfer& transfer) {
  auto& t = static_cast<NcclCall&>(transfer);
  if (t.over) return true;
  watchdog_->check();
  const cudaError_t state = cudaEventQuery(t.end);
  if (!cuda::succeeded(state) && state != cudaErrorNotReady) cuda::raise_error(state, "nccl");
  return state == cudaSuccess;
}

void NcclBackend::wait(Transfer& transfer, Milliseconds timeout) {
  auto& t = static_cast<NcclCall&>(transfer);
  if (!t.over) watchdog_->check();
  kernels::cuda::use_device(t.device);
  cuda::check(cudaStreamWaitEvent(cuda::as_stream(cuda::current_stream(t.device)), t.end, 0), "nccl");
  if (timeout.count() == 0 && !t.host_waits) return;
  const auto deadline = timeout.count() ? Clock::now() + timeout : Clock::time_point::max();
  while (!done(t)) {
    kernels::cpu::poll_interrupt();
    WT_CHECK(Clock::now() < deadline, DistBackendError, t.text(),
             ": wait timed out; the work is still running, and may be waited for again");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

namespace {

// When the plugin is opened.
[[maybe_unused]] const bool registered = [] {
  register_backend(
      "nccl",
      [](const std::shared_ptr<Store>& store, int rank, int size, Milliseconds) -> std::unique_ptr<Backend> {
        nccl();  // says what is missing
        return std::make_unique<NcclBackend>(store, rank, size);
      });
  return true;
}();

}  // namespace
}  // namespace warptape::distributed
