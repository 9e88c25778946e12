// The first exchange of a call moves headers: after it all ranks know that they mean the same call, and so
// the sizes of what comes.
#include "distributed/transport/exchange_backend.h"

#include <algorithm>
#include <cstring>

#include "kernels/distributed/collective.h"
#include "kernels/slot.h"

namespace warptape::distributed {
namespace {

kernels::Slot<kernels::CombineFn> combine_slot{"combine"};

constexpr int64_t kAtOnceBytes = 16 * 1024;        // below, everyone sends everything to everyone
constexpr int64_t kChunkBytes = 64 * 1024 * 1024;  // what is combined at a time

void copy(Block to, Block from) {
  if (to.bytes && to.data != from.data) std::memmove(to.data, from.data, static_cast<size_t>(to.bytes));
}

}  // namespace

std::string ExchangeBackend::describe_call() const {
  return message(describe(*call_), ", call ", sequence_, " at ", *site_, " on rank ", rank_);
}

std::string ExchangeBackend::last_call(int r) const {
  const CallHeader& h = headers_[static_cast<size_t>(r)];
  return h.sequence ? message("was last in call ", h.sequence, ", ", name_of(h.op), " at ", h.site, ".")
                    : std::string("has made no call in this group.");
}

void ExchangeBackend::run(const Collective& call, uint64_t sequence, const std::string& site,
                          Milliseconds timeout) {
  check();
  call_ = &call, site_ = &site, sequence_ = sequence;
  const Tensor* any = call.any_tensor();
  dtype_ = any ? any->dtype() : DType::Bool;
  deadline_ = Clock::now() + timeout;
  try {
    exchange_headers();
    dispatch();
  } catch (const DistBackendError&) {
    throw;
  } catch (const PythonErrorSet&) {
    abort(message(describe_call(), ": rank ", rank_, " was interrupted"));
    throw;
  } catch (const std::exception& e) {
    abort(message(describe_call(), ": rank ", rank_, " failed: ", e.what()));
    throw;
  }
}

std::shared_ptr<void> ExchangeBackend::abandon_memory() {
  struct Memory {
    Collective call;
    std::vector<char> memory;
    std::vector<CallHeader> headers;
    std::vector<int64_t> counts;
  };
  return std::make_shared<Memory>(
      Memory{*call_, std::move(memory_), std::move(arriving_), std::move(counts_)});
}

// The headers of a call that was not made by all stay as they were.
void ExchangeBackend::exchange_headers() {
  arriving_.assign(headers_.size(), {});
  CallHeader& mine = arriving_[static_cast<size_t>(rank_)];
  mine = header_of(*call_, sequence_, *site_);
  auto block = [](CallHeader& h) { return Block{reinterpret_cast<char*>(&h), sizeof h}; };
  Blocks from;
  for (CallHeader& h : arriving_) from.push_back(block(h));
  exchange(same(block(mine)), from);
  headers_.swap(arriving_);
  compare_calls(size_, sequence_,
                [&](int r) -> const CallHeader& { return headers_[static_cast<size_t>(r)]; });
}

ExchangeBackend::Blocks ExchangeBackend::parts(Block b) const {
  Blocks out;
  for (int r = 0; r < size_; ++r) {
    const Part p = part_of(b.bytes, r, size_);
    out.push_back({b.data + p.begin, p.size()});
  }
  return out;
}

ExchangeBackend::Blocks ExchangeBackend::scratch(int64_t bytes) {
  memory_.resize(static_cast<size_t>(bytes) * headers_.size());
  Blocks out;
  for (size_t r = 0; r < headers_.size(); ++r) out.push_back({memory_.data() + r * bytes, bytes});
  return out;
}

// In the order of ranks; `mine` stands in for this rank's own.
void ExchangeBackend::combine(void* out, const Blocks& from, Block mine) {
  if (!mine.bytes) return;
  std::vector<const void*> inputs;
  for (const Block& b : from) inputs.push_back(b.data);
  inputs[static_cast<size_t>(rank_)] = mine.data;
  combine_slot({}, out, inputs.data(), size_, mine.bytes / static_cast<int64_t>(itemsize(dtype_)), dtype_,
               call_->reduce);
}

void ExchangeBackend::dispatch() {
  const Collective& c = *call_;
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
    case CollectiveOp::ReduceScatter:
      reduce_scatter(blocks_of(c.inputs, size_), whole(c.outputs[0]));
      break;
    case CollectiveOp::Barrier:
      break;  // the headers were the barrier
    default: {
      const auto me = static_cast<size_t>(rank_);
      const Exchange blocks = exchange_of(c, size_);
      if (c.info().uneven()) check_counts(blocks);
      exchange(blocks.to, blocks.from);
      copy(blocks.from[me], blocks.to[me]);
    }
  }
}

// Large: the root deals out parts, which all then pass on, so that no link carries the whole n times.
void ExchangeBackend::broadcast(Block data) {
  const auto root = static_cast<size_t>(call_->root);
  const bool is_root = rank_ == call_->root;
  Blocks from = none();
  if (data.bytes <= kAtOnceBytes || size_ == 2) {
    from[root] = data;
    return exchange(is_root ? same(data) : none(), from);
  }
  Blocks part = parts(data), to = same(part[static_cast<size_t>(rank_)]);
  from[root] = part[static_cast<size_t>(rank_)];
  exchange(is_root ? part : none(), from);
  to[root].bytes = 0;
  exchange(to, is_root ? none() : part);
}

void ExchangeBackend::all_reduce(Block data) {
  if (data.bytes <= kAtOnceBytes) {
    const Blocks from = scratch(data.bytes);
    exchange(same(data), from);
    return combine(data.data, from, data);
  }
  for (int64_t at = 0; at < data.bytes; at += kChunkBytes) {
    const Block chunk{data.data + at, std::min(kChunkBytes, data.bytes - at)};
    combine_parts(chunk);
    const Blocks part = parts(chunk);
    const Block mine = part[static_cast<size_t>(rank_)];
    copy(mine, {memory_.data(), mine.bytes});
    exchange(same(mine), part);
  }
}

void ExchangeBackend::reduce(Block data) {
  const auto root = static_cast<size_t>(call_->root);
  const bool is_root = rank_ == call_->root;
  for (int64_t at = 0; at < data.bytes; at += kChunkBytes) {
    const Block chunk{data.data + at, std::min(kChunkBytes, data.bytes - at)};
    combine_parts(chunk);
    const Blocks part = parts(chunk);
    const Block mine = part[static_cast<size_t>(rank_)];
    if (is_root) copy(mine, {memory_.data(), mine.bytes});
    Blocks to = none();
    to[root] = {memory_.data(), mine.bytes};
    exchange(to, is_root ? part : none());
  }
}

// Each rank combines its part of what all have; the result lies at the start of `memory_`.
void ExchangeBackend::combine_parts(Block data) {
  const Blocks part = parts(data);
  const Block mine = part[static_cast<size_t>(rank_)];
  const Blocks from = scratch(mine.bytes);
  exchange(part, from);
  combine(memory_.data(), from, mine);
}

void ExchangeBackend::reduce_scatter(const Blocks& in, Block out) {
  const int64_t step = std::max<int64_t>(kChunkBytes / size_ / kLine * kLine, kLine);
  for (int64_t at = 0; at < out.bytes; at += step) {
    const int64_t bytes = std::min(step, out.bytes - at);
    Blocks to;
    for (const Block& b : in) to.push_back({b.data + at, bytes});
    const Blocks from = scratch(bytes);
    exchange(to, from);
    combine(out.data + at, from, to[static_cast<size_t>(rank_)]);
  }
}

// All ranks learn how much goes where, and see alike whether senders and receivers agree.
void ExchangeBackend::check_counts(const Exchange& blocks) {
  const size_t n = headers_.size(), me = static_cast<size_t>(rank_);
  counts_.assign(n * 2 * n, 0);  // by rank: what it sends to each, what it expects of each
  auto row = [&](size_t r) {
    return Block{reinterpret_cast<char*>(&counts_[r * 2 * n]), static_cast<int64_t>(2 * n * sizeof(int64_t))};
  };
  for (size_t r = 0; r < n; ++r)
    counts_[me * 2 * n + r] = blocks.to[r].bytes, counts_[(me * 2 + 1) * n + r] = blocks.from[r].bytes;
  Blocks from;
  for (size_t r = 0; r < n; ++r) from.push_back(row(r));
  exchange(same(row(me)), from);
  compare_counts(*call_, sequence_, size_, [&](int rank, int other, bool receives) {
    return counts_[(static_cast<size_t>(rank) * 2 + receives) * n + static_cast<size_t>(other)];
  });
}

}  // namespace warptape::distributed
