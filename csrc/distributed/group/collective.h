// One call between ranks as a value, and what carries it out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distributed/store/store.h"
#include "kernels/distributed/collective.h"
#include "tensor/tensor.h"

namespace warptape::distributed {

using ReduceOp = kernels::Combine;

// What a call has on one side.
enum class Operand : uint8_t {
  None,
  One,
  InPlace,  // one or more tensors that are read and written, one after the other: outputs only
  Blocks,   // one for each rank, all like the One of the other side, or a single one that holds all, by rank
  Uneven,   // one for each rank, of any sizes
};

// The declaration of a collective. The checks of arguments, the comparison between ranks, messages, the
// flight record and the backends read it.
inline constexpr uint8_t kReduces = 1;       // combines by Collective::reduce
inline constexpr uint8_t kRooted = 2;        // One goes to, or comes from, the root, which alone has Blocks
inline constexpr uint8_t kPointToPoint = 4;  // `root` is the other rank
struct CollectiveInfo {
  const char* name;
  Operand inputs, outputs;
  uint8_t flags = 0;

  constexpr bool reduces() const { return flags & kReduces; }
  constexpr bool rooted() const { return flags & kRooted; }
  constexpr bool point_to_point() const { return flags & kPointToPoint; }
  constexpr bool uneven() const { return inputs == Operand::Uneven || outputs == Operand::Uneven; }
};

// A collective is an enumerator and, at the same place in the table, its declaration.
enum class CollectiveOp : uint8_t {
  Broadcast,
  AllReduce,
  Reduce,
  AllGather,
  AllGatherV,
  Gather,
  Scatter,
  ReduceScatter,
  AllToAll,
  Barrier,
  Send,
  Recv
};
inline constexpr CollectiveInfo kCollectives[] = {
    {"broadcast", Operand::None, Operand::InPlace, kRooted},
    {"all_reduce", Operand::None, Operand::InPlace, kReduces},
    {"reduce", Operand::None, Operand::InPlace, kReduces | kRooted},
    {"all_gather", Operand::One, Operand::Blocks},
    {"all_gather_v", Operand::One, Operand::Uneven},
    {"gather", Operand::One, Operand::Blocks, kRooted},
    {"scatter", Operand::Blocks, Operand::One, kRooted},
    {"reduce_scatter", Operand::Blocks, Operand::One, kReduces},
    {"all_to_all", Operand::Uneven, Operand::Uneven},
    {"barrier", Operand::None, Operand::None},
    {"send", Operand::One, Operand::None, kPointToPoint},
    {"recv", Operand::None, Operand::One, kPointToPoint},
};
static_assert(std::size(kCollectives) == static_cast<size_t>(CollectiveOp::Recv) + 1);

constexpr const CollectiveInfo& info_of(CollectiveOp op) { return kCollectives[static_cast<int>(op)]; }
constexpr const char* name_of(CollectiveOp op) { return info_of(op).name; }
constexpr bool is_point_to_point(CollectiveOp op) { return info_of(op).point_to_point(); }
WT_API const char* name_of(ReduceOp op);

inline constexpr int kAnyRank = -1;

// One call. Ranks here are those of the group. The tensors of a call have one dtype and one device.
struct Collective {
  CollectiveOp op = CollectiveOp::Barrier;
  ReduceOp reduce = ReduceOp::Sum;
  int root = 0;  // or the other rank of Send and Recv (kAnyRank: whoever sends first)
  int tag = 0;
  std::vector<Tensor> inputs, outputs;

  const CollectiveInfo& info() const { return info_of(op); }
  const Tensor* any_tensor() const {
    return !inputs.empty() ? &inputs[0] : !outputs.empty() ? &outputs[0] : nullptr;
  }
};

// What one rank of a group can check: ShapeError, DtypeError, DeviceError, ValueError.
WT_API void check_arguments(const Collective& call, int rank, int size);
// "all_reduce(float32[4, 2], sum)", "broadcast(int64[3], root 1)"
WT_API std::string describe(const Collective& c);
// What is said of a rank that left: after `error`, unless that is empty.
WT_API std::string left_the_group(int rank, std::string_view error);

// A point-to-point transfer on its way, or any call of a backend that works on a stream.
struct WT_API Transfer {
  virtual ~Transfer();
  int source = kAnyRank;  // of a Recv, once it is known
};

// Why a group was aborted: a rank called abort() or failed; a rank has died or left; time ran out.
enum class AbortReason : uint32_t { None, Requested, PeerLost, Timeout };

// A call for a stream.
struct StreamCall {
  Collective call;
  std::vector<std::pair<Tensor, Tensor>> copies;  // outputs that are not contiguous; what stands for them
  uint64_t sequence = 0;
  std::string site;
  Milliseconds timeout{};
  std::function<std::string(bool well)> ended;  // called once, by some thread; adds to what is said of it
};

// Carries out the calls of one group on one kind of device. Calls come in the same order on all ranks; all
// but point-to-point ones come from one thread at a time. What goes wrong is a DistBackendError that names
// the rank and the call. Tensors are contiguous.
class WT_API Backend {
 public:
  virtual ~Backend();
  virtual const char* name() const = 0;
  // `site` is where the user made the call, `sequence` its number in the group; both for messages.
  virtual void run(const Collective& call, uint64_t sequence, const std::string& site,
                   Milliseconds timeout) = 0;
  // Takes up a Send or Recv; done() moves data and says whether it is over, wait() returns when it is.
  virtual std::shared_ptr<Transfer> post(const Collective& call, const std::string& site) = 0;
  virtual bool done(Transfer& t) = 0;
  virtual void wait(Transfer& t, Milliseconds timeout) = 0;
  // Whether calls run on a stream of their device. Then start() stands in for run() and post(): it takes up
  // calls that go together (more than one: Sends and Recvs), after what the thread's current stream was
  // given, and returns; wait() lets the current stream wait, and the host if a time is given.
  virtual bool on_stream() const { return false; }
  virtual std::vector<std::shared_ptr<Transfer>> start(std::vector<StreamCall> calls);
  // Makes every call of the group fail with `reason`, here and on the other ranks, now and later. From any
  // thread.
  virtual void abort(const std::string& reason) = 0;
  // The exception that this rank leaves after, for those that will wait for it in vain.
  virtual void explain(const std::string&) {}
  // Lets the calls under way end, and leaves the group; the last call.
  virtual void close() {}
  virtual std::string aborted() const = 0;  // the reason; empty while all is well
  virtual AbortReason abort_reason() const {
    return aborted().empty() ? AbortReason::None : AbortReason::Requested;
  }
};

}  // namespace warptape::distributed
