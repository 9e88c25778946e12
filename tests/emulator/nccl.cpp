// In place of NCCL. A call is two tasks of a stream: the first says that the rank has reached it, the second
// waits until it is carried out, which happens when all ranks that it needs have reached theirs. Ranks whose
// calls do not fit together wait for ever, as NCCL's kernels may.
#include "nccl.h"

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <tuple>

#include "internal.h"
#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/libraries/library.h"
#include "kernels/distributed/collective.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/slot.h"
#include "nvrtc.h"

using namespace emulator;

namespace {

enum class Kind { AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, Transfer };
struct Call {
  Kind kind = Kind::AllReduce;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  bool same(const Call& o) const {
    return kind == o.kind && count == o.count && type == o.type && op == o.op && root == o.root;
  }
};
// What ranks do together. A transfer is one of two: its sender comes first.
struct Meeting {
  explicit Meeting(size_t n) : calls(n), reached(n), go(n) {}
  std::vector<Call> calls;
  std::vector<bool> reached;
  bool aborted = false;
  std::vector<std::shared_ptr<Record>> go;
};
using Key = std::tuple<int, int, uint64_t>;  // source and destination (-1: collective), number
struct World {
  explicit World(size_t n) : ranks(n) {}
  std::vector<ncclComm_t> ranks;
  size_t joined = 0;
  std::map<Key, std::shared_ptr<Meeting>> meetings;
};
auto& g_worlds = *new std::map<std::string, std::shared_ptr<World>>;
thread_local int t_depth = 0;
thread_local std::vector<Call> t_calls;

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0, calls = 0;
  ncclResult_t error = ncclSuccess;
  std::map<std::tuple<int, int, bool>, uint64_t> numbers;  // by source, destination, whether it sends
};

namespace {

using warptape::DType;
using warptape::kernels::Combine;
warptape::kernels::Slot<warptape::kernels::CombineFn> combine_slot{"combine"};

DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return DType::Int8;
    case ncclUint8:
      return DType::UInt8;
    case ncclInt32:
      return DType::Int32;
    case ncclInt64:
      return DType::Int64;
    case ncclFloat16:
      return DType::Float16;
    case ncclFloat32:
      return DType::Float32;
    case ncclFloat64:
      return DType::Float64;
    case ncclBfloat16:
      return DType::BFloat16;
    default:
      die("nccl: a type that the plugin does not have");
  }
}
Combine combine_of(ncclRedOp_t op) {
  constexpr std::array<Combine, 5> all{Combine::Sum, Combine::Product, Combine::Max, Combine::Min,
                                       Combine::Avg};
  return all[op];
}

// The values of all ranks, from `offset` elements on, as one.
std::vector<char> combined(const Meeting& m, size_t offset, size_t count) {
  const Call& c = m.calls[0];
  const size_t size = warptape::itemsize(dtype_of(c.type));
  std::vector<char> out(count * size);
  std::vector<const void*> inputs;
  for (const Call& each : m.calls) inputs.push_back(static_cast<const char*>(each.in) + offset * size);
  warptape::kernels::cpu::Uninterrupted quiet;
  if (count)
    combine_slot({}, out.data(), inputs.data(), static_cast<int>(inputs.size()), static_cast<int64_t>(count),
                 dtype_of(c.type), combine_of(c.op));
  return out;
}

void perform(const Meeting& m) {
  const Call& c = m.calls[0];
  const size_t n = m.calls.size(), size = warptape::itemsize(dtype_of(c.type)), bytes = c.count * size;
  auto put = [](void* to, const void* from, size_t length) {
    if (length) std::memmove(to, from, length);
  };
  std::vector<char> all;
  switch (c.kind) {
    case Kind::AllReduce:
    case Kind::Reduce:
      all = combined(m, 0, c.count);
      for (size_t r = 0; r < n; ++r)
        if (c.kind == Kind::AllReduce || static_cast<int>(r) == c.root)
          put(m.calls[r].out, all.data(), bytes);
      break;
    case Kind::ReduceScatter:
      all = combined(m, 0, n * c.count);
      for (size_t r = 0; r < n; ++r) put(m.calls[r].out, all.data() + r * bytes, bytes);
      break;
    case Kind::Broadcast:
      for (const Call& each : m.calls) put(each.out, m.calls[static_cast<size_t>(c.root)].in, bytes);
      break;
    case Kind::AllGather:
      for (const Call& each : m.calls)
        all.insert(all.end(), static_cast<const char*>(each.in), static_cast<const char*>(each.in) + bytes);
      for (const Call& each : m.calls) put(each.out, all.data(), all.size());
      break;
    case Kind::Transfer:
      put(m.calls[1].out, c.in, bytes);
  }
}

// The rank's stream has come to the call.
void reach(World& world, const Key& key, size_t place) {
  const auto m = world.meetings.at(key);
  m->reached[place] = true;
  if (m->aborted) return;
  for (size_t i = 0; i < m->calls.size(); ++i)
    if (!m->reached[i] || !m->calls[i].same(m->calls[0])) return;
  perform(*m);
  for (auto& go : m->go) go->done = true;
  world.meetings.erase(key);
}

ncclResult_t queue(const Call& c, std::vector<std::shared_ptr<Record>>& waits) {
  auto& [world, rank, calls, error, numbers] = *c.comm;
  const bool pair = c.kind == Kind::Transfer, sends = pair && !c.out;
  const int from = !pair ? -1 : sends ? rank : c.root, to = !pair ? -1 : sends ? c.root : rank;
  const Key key{from, to, numbers[{from, to, sends}]++};
  auto& m = world->meetings[key];
  if (!m) m = std::make_shared<Meeting>(pair ? 2 : world->ranks.size());
  const size_t place = pair ? !sends : static_cast<size_t>(rank);
  m->calls[place] = c;
  if (pair) m->calls[place].root = 0;
  m->go[place] = std::make_shared<Record>();
  m->go[place]->help = [weak = std::weak_ptr(m)] {  // a GPU would go on by itself
    const auto m = weak.lock();
    for (size_t i = 0; m && i < m->calls.size(); ++i)
      if (m->go[i] && !m->reached[i]) step(m->calls[i].stream);
    emulator::pause();
  };
  waits.push_back(m->go[place]);
  const char* fail = getenv("WARPTAPE_EMULATED_NCCL_FAIL");
  if (fail && ++calls > atoi(fail)) error = ncclRemoteError;
  return enqueue(
             c.stream, [w = world, key, place] { reach(*w, key, place); }, {c.in, c.out}, "NCCL") ==
                 cudaSuccess
             ? ncclSuccess
             : ncclUnhandledCudaError;
}

ncclResult_t submit(Call call) {
  t_calls.push_back(call);
  return t_depth ? ncclSuccess : (ncclGroupStart(), ncclGroupEnd());
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  for (char& c : id->internal) c = static_cast<char>(random());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  auto held = lock();
  auto& world = g_worlds[std::string(id.internal, sizeof id.internal)];
  if (!world) world = std::make_shared<World>(static_cast<size_t>(size));
  ncclComm_t& place = world->ranks[static_cast<size_t>(rank)];
  if (place) return ncclInvalidUsage;
  place = *comm = new ncclComm{world, rank, 0, ncclSuccess, {}};
  ++world->joined;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  auto held = lock();
  *error = comm->world->joined < comm->world->ranks.size() ? ncclInProgress : comm->error;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  auto held = lock();
  comm->world->ranks[static_cast<size_t>(comm->rank)] = nullptr;
  delete comm;
  return ncclSuccess;
}
// Lets the rank's streams go on, with whatever lies in the outputs.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  auto held = lock();
  for (auto& [key, m] : comm->world->meetings)
    for (size_t i = 0; i < m->calls.size(); ++i)
      if (m->calls[i].comm == comm) m->go[i]->done = m->aborted = true;
  return ncclCommDestroy(comm);
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error" : "invalid usage";
}
const char* ncclGetLastError(ncclComm_t) { return "emulated"; }
ncclResult_t ncclGroupStart() {
  ++t_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--t_depth) return ncclSuccess;
  auto held = lock();
  auto calls = std::move(t_calls);
  t_calls.clear();
  std::vector<std::shared_ptr<Record>> waits;
  for (const Call& c : calls)
    if (ncclResult_t r = queue(c, waits); r != ncclSuccess) return r;
  for (auto& w : waits) enqueue_wait(calls[0].stream, w);
  return calls.empty() ? ncclSuccess : ncclInProgress;
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::AllReduce, in, out, count, type, op, 0, comm, stream});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::Broadcast, in, out, count, type, ncclSum, root, comm, stream});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::Reduce, in, out, count, type, op, root, comm, stream});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit({Kind::AllGather, in, out, count, type, ncclSum, 0, comm, stream});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::ReduceScatter, in, out, count, type, op, 0, comm, stream});
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit({Kind::Transfer, in, nullptr, count, type, ncclSum, peer, comm, stream});
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit({Kind::Transfer, nullptr, out, count, type, ncclSum, peer, comm, stream});
}

namespace warptape::kernels::cuda {

#define WT_NCCL(name) {#name, reinterpret_cast<void*>(&name)}

void* library_symbol(Library library, const char* name) {
  if (library == Library::Nvrtc) {
    if (void* function = emulator::nvrtc_symbol(name)) return function;
    raise_library_error("NVRTC was not found: WARPTAPE_EMULATED_NVRTC says so");
  }
  if (library == Library::Cupti) return emulator::cupti_symbol(name);
  static const std::map<std::string, void*> all{WT_NCCL(ncclGetUniqueId),
                                                WT_NCCL(ncclCommInitRankConfig),
                                                WT_NCCL(ncclCommGetAsyncError),
                                                WT_NCCL(ncclCommFinalize),
                                                WT_NCCL(ncclCommDestroy),
                                                WT_NCCL(ncclCommAbort),
                                                WT_NCCL(ncclGetErrorString),
                                                WT_NCCL(ncclGetLastError),
                                                WT_NCCL(ncclGroupStart),
                                                WT_NCCL(ncclGroupEnd),
                                                WT_NCCL(ncclAllReduce),
                                                WT_NCCL(ncclBroadcast),
                                                WT_NCCL(ncclReduce),
                                                WT_NCCL(ncclAllGather),
                                                WT_NCCL(ncclReduceScatter),
                                                WT_NCCL(ncclSend),
                                                WT_NCCL(ncclRecv)};
  return all.at(name);
}

}  // namespace warptape::kernels::cuda
