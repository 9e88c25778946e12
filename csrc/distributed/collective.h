// One call between ranks as a value, and what carries it out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distributed/store.h"
#include "kernels/collective.h"
#include "tensor/tensor.h"

namespace warptape::distributed {

using ReduceOp = kernels::Combine;

enum class CollectiveOp : uint8_t {
  Broadcast,
  AllReduce,
  Reduce,
  AllGather,
  Gather,
  Scatter,
  ReduceScatter,
  AllToAll,
  Barrier,
  Send,
  Recv
};
WT_API const char* name_of(CollectiveOp op);
WT_API const char* name_of(ReduceOp op);
inline bool is_point_to_point(CollectiveOp op) { return op >= CollectiveOp::Send; }

inline constexpr int kAnyRank = -1;

// Ranks here are those of the group. The tensors of a call have one dtype and one device.
//   Broadcast, AllReduce, Reduce   outputs: the tensors, worked on in place, one after the other
//   AllGather     inputs: one; outputs: one for each rank, or a single one that holds all, by rank
//   Gather        inputs: one; outputs: as AllGather's at the root, none elsewhere
//   Scatter       inputs: as Gather's outputs; outputs: one
//   ReduceScatter inputs: one for each rank, or a single one; outputs: one
//   AllToAll      inputs and outputs: one for each rank, of any sizes
//   Send, Recv    inputs / outputs: one
struct Collective {
  CollectiveOp op = CollectiveOp::Barrier;
  ReduceOp reduce = ReduceOp::Sum;
  int root = 0;  // or the other rank of Send and Recv (kAnyRank: whoever sends first)
  int tag = 0;
  std::vector<Tensor> inputs, outputs;

  const Tensor* any_tensor() const {
    return !inputs.empty() ? &inputs[0] : !outputs.empty() ? &outputs[0] : nullptr;
  }
};

// "all_reduce(float32[4, 2], sum)", "broadcast(int64[3], root 1)"
WT_API std::string describe(const Collective& c);
// What is said of a rank that left: after `error`, unless that is empty.
WT_API std::string left_the_group(int rank, std::string_view error);

// A point-to-point transfer on its way, or any call of a backend that works on a stream.
struct WT_API Transfer {
  virtual ~Transfer();
  int source = kAnyRank;  // of a Recv, once it is known
};

// Why a group was aborted.
enum class Cause : uint32_t {
  None,
  Told,
  Gone,
  Late
};  // by a rank; a rank is dead or has left; time is over

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
  virtual Cause cause() const { return aborted().empty() ? Cause::None : Cause::Told; }
};

}  // namespace warptape::distributed
