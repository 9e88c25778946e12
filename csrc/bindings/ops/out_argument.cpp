#include "bindings/ops/out_argument.h"

#include "graph/record/trace.h"
#include "ops/elementwise/elementwise.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "tensor/memory_format.h"

namespace warptape::bindings {
namespace {

// Calls f with every tensor of out=, one or several.
template <class F>
void each_out(PyObject* out, F&& f) {
  if (is_tensor(out)) return f(tensor_of(out));
  if (!PyTuple_Check(out) && !PyList_Check(out)) return;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(out); ++i)
    if (PyObject* item = PySequence_Fast_GET_ITEM(out, i); is_tensor(item)) f(tensor_of(item));
}

template <class F>
void each_argument(const OpInfo& op, const Frame& frame, F&& f) {
  for (size_t i = 0; i < op.args.size(); ++i) {
    const Value& v = frame.values[i];
    if (!v.present) continue;
    if (op.args[i].type == ArgType::Tensor) f(*v.tensor);
    if (op.args[i].type == ArgType::TensorList)
      for (const Tensor& t : TensorList{static_cast<const Tensor*>(v.list.data), v.list.size}) f(t);
  }
}

// A factory, or an op that draws, computes in the dtype and on the device of `out`.
void take_options(const OpInfo& op, Frame& frame) {
  if (!is_tensor(frame.out)) return;
  const Tensor& out = tensor_of(frame.out);
  for (size_t i = 0; i < op.args.size(); ++i) {
    Value& v = frame.values[i];
    const bool given = v.present;
    if (op.args[i].type == ArgType::DType) {
      WT_CHECK(!given || v.dtype == out.dtype() || (op.flags & kOutDtype), DtypeError, op.name, "(): dtype ",
               v.dtype, " does not match dtype of out parameter (", out.dtype(), ")");
      if (!given) v.dtype = out.dtype();
      v.present = true;
    } else if (op.args[i].type == ArgType::Device && !given) {
      v.device = out.device();
      v.present = true;
    }
  }
}

void check_dtype(const OpInfo& op, const Tensor& out, const Tensor& result) {
  const DType from = result.dtype(), to = out.dtype();
  if (op.flags & kOutExact)
    WT_CHECK(from == to || (from == DType::Bool && to == DType::UInt8), DtypeError, op.name,
             ": Expected out tensor to have dtype ", from, ", but got ", to,
             " instead (expected scalar_type ", scalar_type(from), " but found ", scalar_type(to), ")");
  else
    WT_CHECK(can_cast(from, to), DtypeError, op.name, ": result type ", from,
             " can't be cast to the desired output type ", to);
}

// Refuses an `out` that overlaps an argument, also where it will once it has the result's sizes. Of
// elementwise ops it may be an argument.
void check_apart(const OpInfo& op, const Frame& frame, const Tensor& out, const Shape& sizes) {
  const bool elementwise = op.batching == Batching::Pointwise;
  if (!elementwise && !(op.flags & kOutApart)) return;
  const int64_t end = out.offset() + numel_of(sizes, op.name);
  if (out.sizes() != sizes && static_cast<size_t>(end) * out.itemsize() > out.storage().bytes()) {
    // All on its storage see the memory that it will get.
    each_argument(op, frame, [&](const Tensor& t) {
      WT_CHECK(elementwise || &t.storage() != &out.storage(), Error, op.name, kOverlap);
    });
    return;
  }
  const Tensor target =
      out.sizes() == sizes ? out : alias(out, sizes, contiguous_strides(sizes), out.offset());
  each_argument(op, frame, [&](const Tensor& t) {
    const Overlap found = overlap_of(target, t);
    const bool allowed = elementwise ? found == Overlap::Full : t.same(out) && !target.numel();
    WT_CHECK(allowed || found == Overlap::None || found == Overlap::Unordered, Error, op.name, kOverlap);
  });
}

void write_out(const OpInfo& op, const Tensor& out, const Tensor& result) {
  WT_CHECK(!(thread_state().grad_mode && (requires_grad(out) || requires_grad(result))), Error, op.name,
           "(): functions with out=... arguments don't support automatic differentiation, but one of the "
           "arguments requires grad.");
  check_dtype(op, out, result);
  WT_CHECK(out.device() == result.device(), DeviceError, op.name, ": expected out on ", result.device(),
           ", got ", out.device());
  Tensor from = result;
  if ((op.flags & kOutNumel) && out.numel() == result.numel()) {
    from = alias(result, out.sizes(), contiguous_strides(out.sizes()), result.offset());
  } else if (out.sizes() != result.sizes()) {
    if (out.numel())
      warn(message("An output with one or more elements was resized since it had shape ", out.sizes(),
                   ", which does not match the required output shape ", result.sizes(),
                   ". This behavior is deprecated, and in a future PyTorch release outputs will not be "
                   "resized unless they have zero elements. You can explicitly reuse an out tensor t by "
                   "resizing it, inplace, to zero elements with t.resize_(0)."));
    const bool contiguous = (op.flags & kOutRows) || ((op.flags & kOutColumns) && out.numel());
    raw_resize(op.name, out, result.sizes(),
               contiguous         ? contiguous_strides(result.sizes())
               : is_dense(result) ? result.strides()
                                  : empty_like_layout(result, result.dtype()).strides());
  }
  check_inplace(out, op.name, false);
  raw_copy(out, from);
  out.bump_version();
}

// The same by ops, which a graph knows.
void write_out_by_ops(const OpInfo& op, const Tensor& out, const Tensor& result) {
  check_dtype(op, out, result);
  const bool resizes = out.sizes() != result.sizes();
  WT_CHECK(!resizes || !out.numel(), NotImplementedError, op.name, ": an out= of shape ", out.sizes(),
           " for a result of shape ", result.sizes(), " cannot be traced: give one of its shape");
  const NoGrad no_grad;
  if (resizes) ops::resize_as_(out, result, std::nullopt);
  ops::copy_(out, result, false);
}

}  // namespace

void prepare_out(const OpInfo& op, Frame& frame) {
  each_out(frame.out, [&](const Tensor& out) { check_inplace(out, op.name, false); });
  bool takes_tensors = false;
  each_argument(op, frame, [&](const Tensor&) { takes_tensors = true; });
  if (!takes_tensors || (op.flags & (kRandom | kOutDtype))) take_options(op, frame);
}

PyObject* finish_out(const OpInfo& op, const Frame& frame, Result& result) {
  PyObject* out = frame.out;
  if (op.returns == Result::Kind::OneOrMany)
    WT_CHECK(result.kind == Result::Kind::Tensor || !is_tensor(out), Error, op.name,
             "(): out= takes one result, these arguments give several");
  const bool one = result.kind == Result::Kind::Tensor || op.returns == Result::Kind::OneOrMany;
  const TensorList results = one ? TensorList(&result.tensor, 1) : TensorList(result.tensors);
  std::vector<Tensor> outs;
  each_out(out, [&](const Tensor& t) { outs.push_back(t); });
  WT_CHECK(!one || is_tensor(out), TypeError, op.name, "(): argument 'out' must be Tensor, not ",
           Py_TYPE(out)->tp_name);
  WT_CHECK(one || (!is_tensor(out) && outs.size() == results.size()), TypeError, op.name,
           "(): argument 'out' must be a tuple of ", results.size(), " Tensors");
  for (size_t i = 0; i < outs.size(); ++i) check_apart(op, frame, outs[i], results[i].sizes());
  const auto write = graph::Tracer::recording() ? write_out_by_ops : write_out;
  for (size_t i = 0; i < outs.size(); ++i) write(op, outs[i], results[i]);
  return Py_NewRef(out);
}

}  // namespace warptape::bindings
