#include "distributed/group/collective_header.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace warptape::distributed {
namespace {

// The tensors whose shapes all ranks must agree on; none where they need not.
std::span<const Tensor> common_tensors(const Collective& c) {
  const CollectiveInfo& info = c.info();
  if (c.info().uneven()) return {};
  if (info.inputs == Operand::One) return c.inputs;
  if (info.outputs == Operand::One || info.outputs == Operand::InPlace) return c.outputs;
  return {};
}

}  // namespace

bool same_call(const CallHeader& a, const CallHeader& b) {
  return a.op == b.op && a.reduce == b.reduce && a.dtype == b.dtype && a.root == b.root &&
         a.tensors == b.tensors && a.numel == b.numel && a.ndim == b.ndim &&
         std::equal(a.sizes, a.sizes + std::size(a.sizes), b.sizes);
}

CallHeader header_of(const Collective& c, uint64_t sequence, std::string_view site) {
  CallHeader h{};
  const CollectiveInfo& info = c.info();
  const Tensor* any = c.any_tensor();
  h.sequence = sequence, h.op = c.op, h.dtype = any ? any->dtype() : DType::Bool;
  h.reduce = info.reduces() ? c.reduce : ReduceOp::Sum;
  h.root = info.rooted() || info.point_to_point() ? c.root : 0;
  h.tag = c.tag;
  if (const auto tensors = common_tensors(c); !tensors.empty()) {
    const Tensor& first = tensors[0];
    h.ndim = static_cast<int8_t>(first.ndim());
    for (int64_t i = 0; i < first.ndim() && i < static_cast<int64_t>(std::size(h.sizes)); ++i)
      h.sizes[i] = first.sizes()[i];
    h.tensors = static_cast<int32_t>(tensors.size());
    for (const Tensor& each : tensors) h.numel += each.numel();
  }
  std::memcpy(h.site, site.data(), std::min(site.size(), sizeof h.site - 1));
  return h;
}

std::string describe(const CallHeader& h) {
  const CollectiveInfo& info = info_of(h.op);
  std::string out = message(info.name, '(');
  if (info.inputs != Operand::None || info.outputs != Operand::None) out += warptape::name(h.dtype);
  if (h.tensors) {
    out += '[';
    for (int i = 0; i < h.ndim && i < static_cast<int>(std::size(h.sizes)); ++i)
      out += (i ? ", " : "") + std::to_string(h.sizes[i]);
    out += ']';
  }
  if (h.tensors > 1) out += message(" and ", h.tensors - 1, " more");
  if (info.reduces()) out += message(", ", name_of(h.reduce));
  if (info.rooted()) out += message(", root ", h.root);
  if (info.point_to_point())
    out += message(info.inputs == Operand::One ? ", to " : ", from ",
                   h.root == kAnyRank ? std::string("any rank") : message("rank ", h.root), ", tag ", h.tag);
  out += ')';
  return h.site[0] ? message(out, " at ", h.site) : out;
}

std::string describe(const Collective& c) { return describe(header_of(c)); }

std::string list_of(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) out += (i ? ", " : "") + std::to_string(ranks[i]);
  return out;
}

Block whole(const Tensor& t) { return {t.data_as<char>(), t.numel() * static_cast<int64_t>(t.itemsize())}; }

std::vector<Block> blocks_of(const std::vector<Tensor>& tensors, int n) {
  std::vector<Block> out;
  if (tensors.empty()) out.resize(static_cast<size_t>(n));
  if (tensors.size() == 1) {
    const Block all = whole(tensors[0]);
    for (int r = 0; r < n; ++r) out.push_back({all.data + r * (all.bytes / n), all.bytes / n});
  } else {
    for (const Tensor& t : tensors) out.push_back(whole(t));
  }
  return out;
}

Exchange exchange_of(const Collective& c, int size) {
  auto side = [&](const std::vector<Tensor>& tensors, Operand kind) {
    if (kind != Operand::One) return blocks_of(tensors, size);
    const Block one = whole(tensors[0]);
    const bool to_root = c.info().rooted() || c.info().point_to_point();
    std::vector<Block> out(static_cast<size_t>(size), to_root ? Block{} : one);
    if (to_root) out[static_cast<size_t>(c.root)] = one;
    return out;
  };
  return {side(c.inputs, c.info().inputs), side(c.outputs, c.info().outputs)};
}

int64_t compare_counts(const Collective& c, uint64_t sequence, int size,
                       const std::function<int64_t(int rank, int other, bool receives)>& bytes) {
  int64_t largest = 0;
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to) {
      const int64_t sent = bytes(from, to, false), expected = bytes(to, from, true);
      WT_CHECK(sent == expected, DistBackendError, name_of(c.op), ", call ", sequence, ": rank ", from,
               " sends ", sent, " bytes to rank ", to, ", which expects ", expected);
      largest = std::max(largest, sent);
    }
  return largest;
}

Part part_of(int64_t bytes, int p, int n) {
  const int64_t step = ((bytes + n - 1) / n + kLine - 1) / kLine * kLine;
  return {std::min(bytes, p * step), std::min(bytes, (p + 1) * step)};
}

}  // namespace warptape::distributed
