// What ranks tell each other of a call before it moves data, and what backends on the CPU share besides.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "distributed/group/collective.h"

namespace warptape::distributed {

// What a rank calls, for the others to compare with: of a call, only what its declaration says that ranks
// must agree on, the rest is zero. Plain memory: it is sent as it is.
struct CallHeader {
  uint64_t sequence;
  CollectiveOp op;
  ReduceOp reduce;
  DType dtype;
  int8_t ndim;
  int32_t root;
  int32_t tag;
  int32_t tensors;
  int64_t numel;     // of all tensors
  int64_t sizes[6];  // of the first
  char site[128];
};
WT_API CallHeader header_of(const Collective& call, uint64_t sequence = 0, std::string_view site = {});
WT_API bool same_call(const CallHeader& a, const CallHeader& b);
// "all_reduce(float32[4, 2], sum) at train.py:7 in step", "broadcast(int64[3], root 1)" where no site is
// known
WT_API std::string describe(const CallHeader& header);

// Throws a DistBackendError that shows every rank's call unless they are the same. All ranks see the same
// headers, so all of them come to the same end.
template <class HeaderOf>
void compare_calls(int size, uint64_t sequence, HeaderOf&& header_of) {
  bool same = true;
  for (int r = 1; r < size; ++r) same &= same_call(header_of(0), header_of(r));
  if (__builtin_expect(same, 1)) return;
  std::string text = message("the ranks differ in call ", sequence, ":");
  for (int r = 0; r < size; ++r) text += message("\n  rank ", r, ": ", describe(header_of(r)));
  throw DistBackendError(text);
}

// "rank 3", "ranks 1, 2"
WT_API std::string list_of(const std::vector<int>& ranks);

// Memory of one rank's share of a call.
struct Block {
  char* data;
  int64_t bytes;
};
WT_API Block whole(const Tensor& t);
// One for each of n ranks, out of as many tensors or of a single one; empty ones out of none.
WT_API std::vector<Block> blocks_of(const std::vector<Tensor>& tensors, int n);

// All that a call moves that combines nothing: what this rank has for each rank, and what it gets from each.
// Follows from the declaration, so that a backend needs a kernel only for what it does better.
struct Exchange {
  std::vector<Block> to, from;
};
WT_API Exchange exchange_of(const Collective& call, int size);

// Throws a DistBackendError on every rank unless all senders and receivers of a call with Uneven operands
// agree; returns the size of the largest block. `bytes(rank, other, receives)`: of the rank's block for, or
// from, the other.
WT_API int64_t compare_counts(const Collective& call, uint64_t sequence, int size,
                              const std::function<int64_t(int rank, int other, bool receives)>& bytes);

// The part of `bytes` that falls to rank `p` of n, cut at lines.
inline constexpr int64_t kLine = 64;
struct Part {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};
WT_API Part part_of(int64_t bytes, int p, int n);

}  // namespace warptape::distributed
