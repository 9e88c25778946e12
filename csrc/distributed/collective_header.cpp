#include "distributed/collective_header.h"

#include <algorithm>
#include <cstring>

namespace warptape::distributed {
namespace {

// The tensor whose shape all ranks must agree on; null where they need not.
const Tensor* common_tensor(const Collective& c) {
  switch (c.op) {
    case CollectiveOp::AllGather:
    case CollectiveOp::Gather:
      return &c.inputs[0];
    case CollectiveOp::Barrier:
    case CollectiveOp::AllToAll:
      return nullptr;
    default:
      return &c.outputs[0];
  }
}

}  // namespace

bool same_call(const CallHeader& a, const CallHeader& b) {
  return a.op == b.op && a.reduce == b.reduce && a.dtype == b.dtype && a.root == b.root &&
         a.tensors == b.tensors && a.numel == b.numel && a.ndim == b.ndim &&
         std::equal(a.sizes, a.sizes + std::size(a.sizes), b.sizes);
}

void fill(CallHeader& h, const Collective& c, uint64_t sequence, const std::string& site) {
  const Tensor* any = c.any_tensor();
  h.op = c.op, h.reduce = c.reduce, h.root = c.root, h.dtype = any ? any->dtype() : DType::Bool;
  std::fill(std::begin(h.sizes), std::end(h.sizes), 0);
  h.ndim = 0, h.numel = 0, h.tensors = 0;
  if (const Tensor* t = common_tensor(c)) {
    h.ndim = static_cast<int8_t>(t->ndim());
    for (int64_t i = 0; i < t->ndim() && i < static_cast<int64_t>(std::size(h.sizes)); ++i)
      h.sizes[i] = t->sizes()[i];
    h.numel = t->numel();
    if (c.op <= CollectiveOp::Reduce) {
      h.tensors = static_cast<int32_t>(c.outputs.size());
      h.numel = 0;
      for (const Tensor& each : c.outputs) h.numel += each.numel();
    }
  }
  const size_t n = std::min(site.size(), sizeof h.site - 1);
  std::memcpy(h.site, site.data(), n);
  h.site[n] = 0;
  h.sequence = sequence;
}

std::string describe(const CallHeader& h) {
  std::string out = message(name_of(h.op), '(');
  if (h.op == CollectiveOp::Barrier) return message(out, ") at ", h.site);
  out += message(warptape::name(h.dtype));
  if (h.op != CollectiveOp::AllToAll) {
    out += '[';
    for (int i = 0; i < h.ndim && i < static_cast<int>(std::size(h.sizes)); ++i)
      out += (i ? ", " : "") + std::to_string(h.sizes[i]);
    out += ']';
    if (h.tensors > 1) out += message(" and ", h.tensors - 1, " more");
  }
  if (h.op == CollectiveOp::AllReduce || h.op == CollectiveOp::Reduce || h.op == CollectiveOp::ReduceScatter)
    out += message(", ", name_of(h.reduce));
  if (h.op == CollectiveOp::Broadcast || h.op == CollectiveOp::Reduce || h.op == CollectiveOp::Gather ||
      h.op == CollectiveOp::Scatter)
    out += message(", root ", h.root);
  return message(out, ") at ", h.site);
}

std::string list_of(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) out += (i ? ", " : "") + std::to_string(ranks[i]);
  return out;
}

Block whole(const Tensor& t) { return {t.data_as<char>(), t.numel() * static_cast<int64_t>(t.itemsize())}; }

std::vector<Block> blocks_of(const std::vector<Tensor>& tensors, int n) {
  std::vector<Block> out;
  if (tensors.size() == 1) {
    const Block all = whole(tensors[0]);
    for (int r = 0; r < n; ++r) out.push_back({all.data + r * (all.bytes / n), all.bytes / n});
  } else {
    for (const Tensor& t : tensors) out.push_back(whole(t));
  }
  return out;
}

Part part_of(int64_t bytes, int p, int n) {
  const int64_t step = ((bytes + n - 1) / n + kLine - 1) / kLine * kLine;
  return {std::min(bytes, p * step), std::min(bytes, (p + 1) * step)};
}

}  // namespace warptape::distributed
