// x[...] and x[...] = value. Ints, slices, None and Ellipsis become one view; tensors, lists and bools are
// left to the index op on that view.
#include "bindings/ops/override.h"
#include "bindings/tensor/numpy.h"
#include "graph/record/trace.h"
#include "ops/index/index.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::bindings {
namespace {

struct Item {
  enum class Kind { Int, Slice, NewDim, Advanced } kind;
  int64_t start = 0, length = 0, step = 1;  // Int uses start
  int64_t from = 0, to = PY_SSIZE_T_MAX;    // as they were given, for graphs: another run has other sizes
  bool is_whole() const { return from == 0 && to == PY_SSIZE_T_MAX && step == 1; }
};

struct Parsed {
  SmallVector<Item, 6> items;      // one per dim of the input, plus new dims
  std::vector<OptTensor> indices;  // by dim of the view; empty without advanced indexing
  bool view = false;               // any item but a whole slice or an index tensor
};

bool is_mask(const Tensor& t) { return t.dtype() == DType::Bool || t.dtype() == DType::UInt8; }

Tensor index_tensor(PyObject* o) {
  Tensor t = is_tensor(o) ? tensor_of(o) : tensor_from_data(o);
  if (t.dtype() != DType::UInt8) return t;
  warn("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
  return raw_cast(t, DType::Bool);
}

bool takes_ops(const Tensor& x) { return is_opaque(x) || graph::Tracer::recording(); }

// Whether PyTorch takes a list for a tuple of indices: when it is short and some item is no number.
bool stands_for_tuple(PyObject* list) {
  if (!PyList_Check(list) || PyList_GET_SIZE(list) >= 32) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* o = PyList_GET_ITEM(list, i);
    if (o == Py_None || o == Py_Ellipsis || PySlice_Check(o) || is_tensor(o) || PySequence_Check(o))
      return true;
  }
  return false;
}

Item slice_item(PyObject* o, int64_t size, int64_t dim) {
  Py_ssize_t start, stop, step;
  // Bounds may be 0-dim tensors: __index__ takes care of them.
  checked(PySlice_Unpack(o, &start, &stop, &step));
  WT_CHECK(step > 0, ValueError, "indexing: slice step must be positive, got ", step, " at dim ", dim,
           "; use flip() for the reverse order");
  Item item{Item::Kind::Slice};
  item.from = start;
  item.to = stop;
  item.length = PySlice_AdjustIndices(static_cast<Py_ssize_t>(size), &start, &stop, step);
  item.start = item.length > 0 || graph::Tracer::current() ? start : 0;
  item.step = step;
  return item;
}

Item int_item(int64_t i, int64_t size, int64_t dim) {
  WT_CHECK(i >= -size && i < size, IndexError, "index ", i, " is out of bounds for dimension ", dim,
           " with size ", size);
  Item item{Item::Kind::Int, i < 0 ? i + size : i};
  item.from = i;
  return item;
}

// How many dims of the input an item takes.
int64_t consumed(PyObject* o) {
  if (o == Py_None || o == Py_Ellipsis || PyBool_Check(o)) return 0;
  if (is_tensor(o) && is_mask(tensor_of(o))) return tensor_of(o).ndim();
  return 1;
}

class Parser {
 public:
  Parser(const Tensor& x, PyObject* const* items, Py_ssize_t n) : x_(x), sizes_(x.sizes()) {
    for (Py_ssize_t i = 0; i < n; ++i) taken_ += consumed(items[i]);
    WT_CHECK(taken_ <= x.ndim(), IndexError, "indexing: too many indices for tensor of dimension ", x.ndim(),
             ": got ", taken_);
    for (Py_ssize_t i = 0; i < n; ++i) add(items[i]);
    while (dim_ < x.ndim()) whole();
    WT_CHECK(x.sizes() == sizes_, Error, "indexing: __index__ of an index changed the tensor");
    bool advanced = false;
    for (auto& t : out.indices) advanced |= t.has_value();
    if (!advanced) out.indices.clear();
  }
  Parsed out;

 private:
  // The size of the next dim of the input. There may be none where __index__ changed what was counted.
  int64_t take() {
    WT_CHECK(dim_ < std::ssize(sizes_), IndexError, "indexing: too many indices for tensor of dimension ",
             sizes_.size());
    return sizes_[static_cast<size_t>(dim_++)];
  }
  void whole() {
    out.items.push_back({Item::Kind::Slice, 0, take(), 1});
    out.indices.emplace_back();
  }
  void push_view(Item item) {
    out.view = true;
    out.items.push_back(item);
    if (item.kind != Item::Kind::Int) out.indices.emplace_back();
  }
  void advanced(Tensor index, int64_t dims) {
    for (int64_t d = 0; d < dims; ++d) out.items.push_back({Item::Kind::Slice, 0, take(), 1});
    out.indices.emplace_back(std::move(index));
    // A mask of several dims stands for as many index tensors; the op expands it.
    for (int64_t d = 1; d < dims; ++d) out.indices.emplace_back();
  }
  void add(PyObject* o) {
    if (o == Py_None) return push_view({Item::Kind::NewDim});
    if (o == Py_Ellipsis) {
      if (graph::Tracer* tracer = graph::Tracer::recording()) tracer->tell_sizes(x_, "...", true);
      WT_CHECK(!ellipsis_, IndexError, "an index can only have a single ellipsis ('...')");
      ellipsis_ = true;
      for (int64_t left = x_.ndim() - taken_; left > 0; --left) whole();
      return;
    }
    if (PyBool_Check(o)) {  // a mask over a new dim of size 1
      push_view({Item::Kind::NewDim});
      out.indices.back() = full(Shape{1}, o == Py_True, {DType::Bool, Device{}});
      return;
    }
    if (PySlice_Check(o)) {
      const int64_t size = take();
      Item item = slice_item(o, size, dim_ - 1);
      if (takes_ops(x_) ? item.is_whole() : item.start == 0 && item.step == 1 && item.length == size) {
        --dim_;
        return whole();
      }
      return push_view(item);
    }
    add_index(o);
  }
  void add_index(PyObject* o) {
    bool scalar_tensor = is_tensor(o) && !is_opaque(tensor_of(o)) && tensor_of(o).ndim() == 0 &&
                         !is_mask(tensor_of(o)) && category(tensor_of(o).dtype()) <= DTypeCategory::Integral;
    if (PyLong_Check(o) || scalar_tensor || (!is_tensor(o) && PyIndex_Check(o) && !PySequence_Check(o))) {
      Object number = checked(PyNumber_Index(o));
      int64_t i = PyLong_AsLongLong(number.get());
      if (i == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        throw IndexError("indexing: an int index must fit into 64 bits");
      }
      const int64_t size = take();
      return push_view(int_item(i, size, dim_ - 1));
    }
    WT_CHECK(is_tensor(o) || PySequence_Check(o), IndexError,
             "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid "
             "indices (got ",
             Py_TYPE(o)->tp_name, ")");
    Tensor index = index_tensor(o);
    // Of an empty list, which has no dtype of its own, a float tensor was made.
    WT_CHECK(!is_differentiable(index.dtype()) || (index.numel() == 0 && !is_tensor(o)), IndexError,
             "indexing: tensors used as indices must be long, int, byte or bool tensors, got ", index);
    if (is_differentiable(index.dtype())) index = raw_cast(index, DType::Int64);
    bool mask = index.dtype() == DType::Bool;
    if (mask && index.ndim() == 0) {
      push_view({Item::Kind::NewDim});
      out.indices.back() = expand_view(index, Shape{1});
      return;
    }
    int64_t dims = mask ? index.ndim() : 1;
    for (int64_t d = 0; mask && d < dims; ++d)
      WT_CHECK(dim_ + d < std::ssize(sizes_) && index.sizes()[d] == sizes_[static_cast<size_t>(dim_ + d)],
               IndexError, "indexing: The shape of the mask ", index.sizes(), " at index ", d,
               " does not match the shape of the indexed tensor ", sizes_, " at index ", dim_ + d);
    advanced(std::move(index), dims);
  }

  const Tensor& x_;
  const Shape sizes_;
  int64_t taken_ = 0, dim_ = 0;
  bool ellipsis_ = false;
};

Parsed parse_index(const Tensor& x, PyObject* index) {
  if (PyTuple_Check(index))
    return std::move(Parser(x, &PyTuple_GET_ITEM(index, 0), PyTuple_GET_SIZE(index)).out);
  if (stands_for_tuple(index)) {
    warn(
        "Using a non-tuple sequence for multidimensional indexing is deprecated; use x[tuple(seq)] instead "
        "of x[seq].");
    Object items = frozen(index);
    return std::move(Parser(x, &PyTuple_GET_ITEM(items.get(), 0), PyTuple_GET_SIZE(items.get())).out);
  }
  return std::move(Parser(x, &index, 1).out);
}

// The same by ops, which function transforms and graphs know.
Tensor view_by_ops(const Tensor& x, const Parsed& p) {
  Tensor out = x;
  int64_t dim = 0;
  for (const Item& item : p.items) {
    if (item.kind == Item::Kind::Int) {
      out = ops::select(out, dim, item.from);
      continue;
    }
    if (item.kind == Item::Kind::NewDim)
      out = ops::unsqueeze(out, dim);
    else if (!item.is_whole())
      out = ops::slice_range(out, dim, item.from, item.to, item.step);
    ++dim;
  }
  return out;
}

Tensor basic_view(const Tensor& x, const Parsed& p) {
  if (!p.view) return x;
  if (takes_ops(x)) return view_by_ops(x, p);
  return ops::region(x, [&](Shape& sizes, Shape& strides, int64_t& offset) {
    Shape new_sizes, new_strides;
    size_t dim = 0;
    for (const Item& item : p.items) {
      if (item.kind == Item::Kind::NewDim) {
        new_sizes.push_back(1);
        new_strides.push_back(dim < sizes.size() ? sizes[dim] * strides[dim] : 1);
        continue;
      }
      offset += item.start * strides[dim];
      if (item.kind == Item::Kind::Slice) {
        new_sizes.push_back(item.length);
        new_strides.push_back(strides[dim] * item.step);
      }
      ++dim;
    }
    sizes = std::move(new_sizes);
    strides = std::move(new_strides);
  });
}

// x[i] with a plain int, the most frequent index by far.
bool is_plain_int(PyObject* index, int64_t& i) {
  if (!PyLong_CheckExact(index)) return false;
  int overflow = 0;
  i = PyLong_AsLongLongAndOverflow(index, &overflow);
  return !overflow;
}

Tensor value_tensor(PyObject* value, const Tensor& like) {
  if (is_tensor(value)) return tensor_of(value);
  Scalar s;
  if (to_scalar(value, s)) {
    // A narrow float may become infinite here, though not in fill_.
    const bool narrow = is_floating(like.dtype()) && like.itemsize() == 2;
    return raw_cast(scalar_tensor(s, narrow ? DType::Float64 : like.dtype()), like.dtype());
  }
  return raw_cast(tensor_from_data(value), like.dtype());
}

// A value may have more leading dims of size 1 than the place it goes to.
Tensor drop_leading_ones(Tensor v, int64_t ndim) {
  while (v.ndim() > ndim && v.sizes()[0] == 1) v = ops::squeeze_dim(v, 0);
  return v;
}

}  // namespace

PyObject* tensor_getitem(PyObject* self, PyObject* index) {
  return guarded([&] {
    if (overridden(self, &index, 1))
      return call_override(tensor_attribute("__getitem__").get(), self, &index, 1, nullptr);
    const Tensor& x = tensor_of(self);
    if (int64_t i; is_plain_int(index, i) && x.ndim() > 0) return wrap(ops::select(x, 0, i));
    WT_CHECK(x.ndim() > 0 || !PyLong_Check(index) || PyBool_Check(index), IndexError,
             "invalid index of a 0-dim tensor. Use `tensor.item()` to convert it to a number");
    Parsed p = parse_index(x, index);
    Tensor out = basic_view(x, p);
    if (!p.indices.empty()) return wrap(ops::index(out, p.indices));
    if (takes_ops(x)) return wrap(out);
    return wrap(out.same(x) ? ops::region(x, [](Shape&, Shape&, int64_t&) {}) : out);
  });
}

int tensor_setitem(PyObject* self, PyObject* index, PyObject* value) {
  return guarded(
      [&] {
        WT_CHECK(value, TypeError, "Tensor does not support deleting items");
        if (PyObject* args[] = {index, value}; overridden(self, args, 2)) {
          checked(call_override(tensor_attribute("__setitem__").get(), self, args, 2, nullptr));
          return 0;
        }
        const Tensor& x = tensor_of(self);
        Parsed p = parse_index(x, index);
        Tensor place = basic_view(x, p);
        Tensor v = value_tensor(value, x);
        if (!p.indices.empty()) {
          ops::index_put_(place, p.indices, drop_leading_ones(std::move(v), 0), false);
        } else {
          ops::copy_(place, drop_leading_ones(std::move(v), place.ndim()), false);
        }
        return 0;
      },
      -1);
}

}  // namespace warptape::bindings
