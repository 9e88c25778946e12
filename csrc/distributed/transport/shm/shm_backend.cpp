// Collectives in rounds: a rank writes into its slot, all publish, and each reads what it needs from the
// slots of the others. Slots come in two parities, so that one sync a round is enough: who writes to a parity
// again knows by the round between that all have read it.
#include "distributed/transport/shm/shm_backend.h"

#include <algorithm>
#include <cstring>

#include "kernels/slot.h"

namespace warptape::distributed {
namespace {

kernels::Slot<kernels::CombineFn> combine_slot{"combine"};

constexpr int64_t kAtOnceBytes = 16 * 1024;

}  // namespace

ShmBackend::ShmBackend(Store& store, int rank, int size, Milliseconds timeout)
    : region_(store, rank, size, timeout), mailbox_(region_) {
  region_.on_idle = [] { Mailbox::try_progress_every(); };
  region_.describe_call = [this] {
    return message(distributed::describe(*call_), ", call ", sequence_, " at ", *site_, " on rank ",
                   region_.rank());
  };
  // When all are here, nobody needs the store any more: the rank that serves it may go at once.
  run(Collective{}, 0, "the start of the group", timeout);
}

void ShmBackend::run(const Collective& call, uint64_t sequence, const std::string& site,
                     Milliseconds timeout) {
  region_.check();
  call_ = &call, site_ = &site, sequence_ = sequence;
  deadline_ = Clock::now() + timeout;
  compared_ = false;
  const Tensor* any = call.any_tensor();
  dtype_ = any ? any->dtype() : DType::Bool;
  region_.words(region_.rank()).calls[sequence & 1] = header_of(call, sequence, site);
  try {
    dispatch();
  } catch (const DistBackendError&) {
    throw;
  } catch (const PythonErrorSet&) {
    region_.abort(message(region_.describe_call(), ": rank ", region_.rank(), " was interrupted"));
    throw;
  } catch (const std::exception& e) {
    region_.abort(message(region_.describe_call(), ": rank ", region_.rank(), " failed: ", e.what()));
    throw;
  }
}

void ShmBackend::round() {
  region_.publish();
  region_.wait_for_all(deadline_);
  if (compared_) return;
  compared_ = true;
  compare_calls(region_.size(), sequence_,
                [&](int r) -> const CallHeader& { return region_.words(r).calls[sequence_ & 1]; });
}

void ShmBackend::dispatch() {
  const Collective& c = *call_;
  auto blocks = [this](const std::vector<Tensor>& tensors) { return blocks_of(tensors, region_.size()); };
  switch (c.op) {
    case CollectiveOp::Broadcast:
      for (const Tensor& t : c.outputs) broadcast(whole(t));
      break;
    case CollectiveOp::AllReduce:
      for (const Tensor& t : c.outputs) all_reduce(whole(t));
      break;
    case CollectiveOp::Reduce:
      for (const Tensor& t : c.outputs) reduce(whole(t));
      break;
    case CollectiveOp::AllGather:
    case CollectiveOp::Gather:
      all_gather(whole(c.inputs[0]), blocks(c.outputs));
      break;
    case CollectiveOp::ReduceScatter:
      reduce_scatter(blocks(c.inputs), whole(c.outputs[0]));
      break;
    case CollectiveOp::Barrier:
      round();
      break;
    default:
      exchange(exchange_of(c, region_.size()));
  }
}

void ShmBackend::combine(void* out, const void* const* inputs, int64_t bytes) {
  if (bytes)
    combine_slot({}, out, inputs, region_.size(), bytes / static_cast<int64_t>(itemsize(dtype_)), dtype_,
                 call_->reduce);
}

// Everyone (or just who `writes`) shows its block piece by piece; read(at, bytes, parity) sees the pieces of
// all. An empty block takes a round too: it is a call like any other.
template <class Read>
void ShmBackend::share(Block mine, bool writes, Read&& read) {
  int64_t at = 0;
  do {
    const int64_t n = std::min<int64_t>(mine.bytes - at, kSlotBytes);
    const uint32_t p = parity();
    if (writes && n) std::memcpy(region_.slot(region_.rank(), p), mine.data + at, n);
    round();
    if (n) read(at, n, p);
    at += n;
  } while (at < mine.bytes);
}

void ShmBackend::broadcast(Block data) {
  const bool root = region_.rank() == call_->root;
  share(data, root, [&](int64_t at, int64_t n, uint32_t p) {
    if (!root) std::memcpy(data.data + at, region_.slot(call_->root, p), n);
  });
}

void ShmBackend::reduce(Block data) {
  const bool root = region_.rank() == call_->root;
  std::vector<const void*> inputs(region_.size());
  share(data, !root, [&](int64_t at, int64_t n, uint32_t p) {
    if (!root) return;
    for (int r = 0; r < region_.size(); ++r) inputs[r] = region_.slot(r, p);
    inputs[call_->root] = data.data + at;
    combine(data.data + at, inputs.data(), n);
  });
}

void ShmBackend::all_gather(Block in, const std::vector<Block>& out) {
  share(in, true, [&](int64_t at, int64_t n, uint32_t p) {
    for (size_t r = 0; r < out.size(); ++r)
      if (out[r].bytes && static_cast<int>(r) != region_.rank())
        std::memcpy(out[r].data + at, region_.slot(r, p), n);
  });
  if (Block own = out[region_.rank()]; own.bytes && own.data != in.data)
    std::memmove(own.data, in.data, own.bytes);
}

// Small: everyone reads everything.
void ShmBackend::all_reduce_at_once(Block data) {
  std::vector<const void*> inputs(region_.size());
  share(data, true, [&](int64_t at, int64_t n, uint32_t p) {
    for (int r = 0; r < region_.size(); ++r) inputs[r] = region_.slot(r, p);
    combine(data.data + at, inputs.data(), n);
  });
}

// Large: of each chunk a rank combines its own part and the others read the result. The steps of two chunks
// share a round: while chunk k is written, chunk k - 1 is combined.
void ShmBackend::all_reduce(Block data) {
  if (data.bytes <= kAtOnceBytes) return all_reduce_at_once(data);
  const int n = region_.size(), me = region_.rank();
  std::vector<const void*> inputs(n);
  const int64_t chunk = kSlotBytes;
  auto size_of = [&](int64_t at) { return std::min(chunk, data.bytes - at); };
  for (int64_t at = 0; at < data.bytes + chunk; at += chunk) {
    const uint32_t p = parity();
    if (at < data.bytes)
      for (int r = 0; r < n; ++r)
        if (Part part = part_of(size_of(at), r, n); r != me && part.size())
          std::memcpy(region_.slot(me, p) + part.begin, data.data + at + part.begin, part.size());
    const int64_t before = at - chunk;
    if (before >= 0) {
      const Part mine = part_of(size_of(before), me, n);
      char* own = data.data + before + mine.begin;
      for (int r = 0; r < n; ++r) inputs[r] = region_.slot(r, p ^ 1) + mine.begin;
      inputs[me] = own;
      combine(own, inputs.data(), mine.size());
      if (mine.size()) std::memcpy(region_.result(me, p) + mine.begin, own, mine.size());
    }
    round();
    if (before >= 0)
      for (int r = 0; r < n; ++r)
        if (Part part = part_of(size_of(before), r, n); r != me && part.size())
          std::memcpy(data.data + before + part.begin, region_.result(r, p) + part.begin, part.size());
  }
}

// A slot holds one piece for each rank.
void ShmBackend::reduce_scatter(const std::vector<Block>& in, Block out) {
  const int n = region_.size(), me = region_.rank();
  const int64_t piece = kSlotBytes / n / kLine * kLine;
  std::vector<const void*> inputs(n);
  int64_t at = 0;
  do {
    const int64_t bytes = std::min(out.bytes - at, piece);
    const uint32_t p = parity();
    for (int r = 0; r < n && bytes; ++r)
      if (r != me) std::memcpy(region_.slot(me, p) + r * piece, in[r].data + at, bytes);
    round();
    for (int r = 0; r < n; ++r) inputs[r] = region_.slot(r, p) + me * piece;
    inputs[me] = in[me].data + at;
    combine(out.data + at, inputs.data(), bytes);
    at += bytes;
  } while (at < out.bytes);
}

// Shows how much goes where; all ranks see the same.
int64_t ShmBackend::exchange_counts(const Exchange& blocks) {
  const int n = region_.size(), me = region_.rank();
  const uint32_t q = sequence_ & 1;
  for (int r = 0; r < n; ++r) {
    region_.counts(me, q, false)[r] = blocks.to[r].bytes;
    region_.counts(me, q, true)[r] = blocks.from[r].bytes;
  }
  round();
  return compare_counts(*call_, sequence_, n, [&](int rank, int other, bool receives) {
    return region_.counts(rank, q, receives)[other];
  });
}

// Every call that only moves data, piece by piece. An even call has blocks of one size, by its header.
void ShmBackend::exchange(const Exchange& blocks) {
  const int n = region_.size(), me = region_.rank();
  const int64_t piece = kSlotBytes / n / kLine * kLine;
  const auto& [to, from] = blocks;
  int64_t largest = 0;
  if (call_->info().uneven())
    largest = exchange_counts(blocks);
  else
    for (int r = 0; r < n; ++r) largest = std::max({largest, to[r].bytes, from[r].bytes});
  if (largest == 0 && !compared_) round();
  for (int64_t at = 0; at < largest; at += piece) {
    const uint32_t p = parity();
    auto rest = [&](const Block& b) { return std::clamp<int64_t>(b.bytes - at, 0, piece); };
    for (int r = 0; r < n; ++r)
      if (r != me && rest(to[r])) std::memcpy(region_.slot(me, p) + r * piece, to[r].data + at, rest(to[r]));
    round();
    for (int r = 0; r < n; ++r)
      if (r != me && rest(from[r]))
        std::memcpy(from[r].data + at, region_.slot(r, p) + me * piece, rest(from[r]));
  }
  if (from[me].bytes) std::memmove(from[me].data, to[me].data, from[me].bytes);
}

}  // namespace warptape::distributed
