#include "distributed/group/collective.h"

#include "core/dtype.h"

namespace warptape::distributed {

Backend::~Backend() = default;
Transfer::~Transfer() = default;
std::vector<std::shared_ptr<Transfer>> Backend::start(std::vector<StreamCall>) {
  throw Error(message(name(), ": this backend has no stream"));
}

const char* name_of(ReduceOp op) {
  constexpr const char* names[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  return names[static_cast<int>(op)];
}

namespace {

// One of the two sides of a call against its declaration; `one` is the tensor that blocks must be like.
void check_side(const Collective& c, const std::vector<Tensor>& tensors, Operand kind, const Tensor* one,
                int size) {
  const char* op = name_of(c.op);
  const int n = static_cast<int>(tensors.size());
  if (kind == Operand::None) {
    WT_CHECK(n == 0, ValueError, op, ": expected no tensors on this side, got ", n);
  } else if (kind == Operand::One) {
    WT_CHECK(n == 1, ValueError, op, ": expected one tensor, got ", n);
  } else if (kind == Operand::InPlace) {
    WT_CHECK(n > 0, ValueError, op, ": expected at least one tensor");
  } else if (kind == Operand::Blocks && n == 1) {
    WT_CHECK(tensors[0].numel() == one->numel() * size, ShapeError, op,
             ": a single tensor for all ranks holds ", size, " blocks of ", *one, "; got ", tensors[0]);
  } else {
    WT_CHECK(n == size, ShapeError, op, ": expected a tensor for each of ", size, " ranks, got ", n);
    for (const Tensor& t : tensors)
      WT_CHECK(kind == Operand::Uneven || t.numel() == one->numel(), ShapeError, op,
               ": expected tensors like ", *one, ", got ", t);
  }
}

}  // namespace

void check_arguments(const Collective& c, int rank, int size) {
  const CollectiveInfo& info = c.info();
  const char* op = info.name;
  if (info.rooted() || info.point_to_point()) {
    const bool any = c.op == CollectiveOp::Recv && c.root == kAnyRank;
    WT_CHECK(any || (c.root >= 0 && c.root < size), ValueError, op, ": rank ", c.root,
             " is not in the group of ", size, " ranks");
    WT_CHECK(!info.point_to_point() || c.root != rank, ValueError, op, ": rank ", rank,
             " cannot exchange with itself");
  }
  const Tensor* first = c.any_tensor();
  for (const auto* list : {&c.inputs, &c.outputs})
    for (const Tensor& t : *list) {
      WT_CHECK(t.dtype() == first->dtype(), DtypeError, op, ": the tensors of a call have one dtype, got ",
               *first, " and ", t);
      WT_CHECK(t.device() == first->device(), DeviceError, op,
               ": the tensors of a call are on one device, got ", *first, " and ", t);
    }
  if (first) {
    WT_CHECK(!first->device().is_meta(), DeviceError, op,
             ": a tensor on the meta device has no data to exchange");
    const DType d = first->dtype();
    WT_CHECK(!info.reduces() || c.reduce < ReduceOp::BitAnd || !is_floating(d), DtypeError, op, ": ",
             name_of(c.reduce), " needs integers or bool, got ", warptape::name(d));
    WT_CHECK(!info.reduces() || c.reduce != ReduceOp::Avg || d != DType::Bool, DtypeError, op,
             ": avg is not supported for bool");
  }
  const Tensor* one = nullptr;
  const std::pair<const std::vector<Tensor>&, Operand> sides[] = {{c.inputs, info.inputs},
                                                                  {c.outputs, info.outputs}};
  for (const auto& [tensors, kind] : sides)
    if (kind == Operand::One && !tensors.empty()) one = &tensors[0];
  for (const auto& [tensors, kind] : sides) {
    const bool elsewhere = kind == Operand::Blocks && info.rooted() && c.root != rank;
    check_side(c, tensors, elsewhere ? Operand::None : kind, one, size);
  }
}

std::string left_the_group(int rank, std::string_view error) {
  if (error.empty())
    return message("rank ", rank, " has left the group (destroy_process_group) and will not join");
  return message("rank ", rank, " has left the group after ", error);
}

}  // namespace warptape::distributed
