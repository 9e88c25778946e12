#include "distributed/collective.h"

#include "core/dtype.h"

namespace warptape::distributed {

Backend::~Backend() = default;
Transfer::~Transfer() = default;
std::vector<std::shared_ptr<Transfer>> Backend::start(std::vector<StreamCall>) {
  throw Error(message(name(), ": this backend has no stream"));
}

const char* name_of(CollectiveOp op) {
  constexpr const char* names[] = {"broadcast", "all_reduce",     "reduce",     "all_gather", "gather",
                                   "scatter",   "reduce_scatter", "all_to_all", "barrier",    "send",
                                   "recv"};
  return names[static_cast<int>(op)];
}

const char* name_of(ReduceOp op) {
  constexpr const char* names[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  return names[static_cast<int>(op)];
}

std::string describe(const Collective& c) {
  std::ostringstream out;
  out << name_of(c.op) << '(';
  const char* comma = "";
  const bool inputs = !c.inputs.empty() && c.op != CollectiveOp::Scatter;
  if (const auto& tensors = inputs ? c.inputs : c.outputs; !tensors.empty()) {
    out << tensors[0];
    if (tensors.size() > 1) out << " and " << tensors.size() - 1 << " more";
    comma = ", ";
  }
  if (c.op == CollectiveOp::AllReduce || c.op == CollectiveOp::Reduce || c.op == CollectiveOp::ReduceScatter)
    out << comma << name_of(c.reduce), comma = ", ";
  if (c.op == CollectiveOp::Broadcast || c.op == CollectiveOp::Reduce || c.op == CollectiveOp::Gather ||
      c.op == CollectiveOp::Scatter)
    out << comma << "root " << c.root;
  if (c.op == CollectiveOp::Send) out << comma << "to rank " << c.root << ", tag " << c.tag;
  if (c.op == CollectiveOp::Recv && c.root == kAnyRank) out << comma << "from any rank, tag " << c.tag;
  if (c.op == CollectiveOp::Recv && c.root != kAnyRank)
    out << comma << "from rank " << c.root << ", tag " << c.tag;
  out << ')';
  return std::move(out).str();
}

std::string left_the_group(int rank, std::string_view error) {
  if (error.empty())
    return message("rank ", rank, " has left the group (destroy_process_group) and will not join");
  return message("rank ", rank, " has left the group after ", error);
}

}  // namespace warptape::distributed
