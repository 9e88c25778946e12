// What ranks tell each other of a call before it moves data, and what backends on the CPU share besides.
#pragma once

#include <vector>

#include "distributed/collective.h"

namespace warptape::distributed {

// What a rank calls, for the others to compare with. Plain memory: it is sent as it is.
struct CallHeader {
  uint64_t sequence;
  CollectiveOp op;
  ReduceOp reduce;
  DType dtype;
  int8_t ndim;
  int32_t root;
  int32_t tensors;
  int64_t numel;     // of all tensors
  int64_t sizes[6];  // of the first
  char site[128];
};
WT_API void fill(CallHeader& header, const Collective& call, uint64_t sequence, const std::string& site);
WT_API bool same_call(const CallHeader& a, const CallHeader& b);
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
// One for each of n ranks, out of as many tensors or of a single one.
WT_API std::vector<Block> blocks_of(const std::vector<Tensor>& tensors, int n);

// The part of `bytes` that falls to rank `p` of n, cut at lines.
inline constexpr int64_t kLine = 64;
struct Part {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};
WT_API Part part_of(int64_t bytes, int p, int n);

}  // namespace warptape::distributed
