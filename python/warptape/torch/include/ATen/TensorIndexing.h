// x.index({Slice(0, 2), None, mask}) and x.index_put_(.., value).
#pragma once

#include "ATen/TensorOperators.h"

namespace at {
namespace indexing {

enum class EllipsisIndexType { Ellipsis };
constexpr EllipsisIndexType Ellipsis = EllipsisIndexType::Ellipsis;
constexpr nullopt_t None = nullopt;

struct Slice {
  Slice(optional<int64_t> start = nullopt, optional<int64_t> stop = nullopt, optional<int64_t> step = nullopt)
      : start(start), stop(stop), step(step.value_or(1)) {
    TORCH_CHECK_VALUE(this->step > 0, "slice step must be positive");
  }
  optional<int64_t> start, stop;
  int64_t step;
};

struct TensorIndex {
  enum class Kind { None, Ellipsis, Integer, Boolean, Slice, Tensor };
  TensorIndex(nullopt_t) : kind(Kind::None) {}
  TensorIndex(EllipsisIndexType) : kind(Kind::Ellipsis) {}
  TensorIndex(const char* dots) : kind(Kind::Ellipsis) {
    TORCH_CHECK_VALUE(string_view(dots) == "...", "expected \"...\", got \"", dots, "\"");
  }
  template <class T, std::enable_if_t<std::is_integral<T>::value && !std::is_same<T, bool>::value, int> = 0>
  TensorIndex(T i) : kind(Kind::Integer), integer(i) {}
  template <class T, std::enable_if_t<std::is_same<T, bool>::value, int> = 0>
  TensorIndex(T b) : kind(Kind::Boolean), integer(b) {}
  TensorIndex(Slice s) : kind(Kind::Slice), slice(s) {}
  TensorIndex(at::Tensor t) : kind(Kind::Tensor), tensor(std::move(t)) {}
  Kind kind;
  int64_t integer = 0;
  Slice slice;
  at::Tensor tensor;
};

// A view by all that is no tensor, and the tensors at the dims that they index.
struct Indexed {
  Tensor view;
  std::vector<Tensor> indices;  // undefined where a dim is taken whole
  bool by_tensors = false;
};

inline Tensor sliced(const Tensor& self, int64_t dim, optional<int64_t> start, optional<int64_t> stop,
                     int64_t step) {
  const int64_t size = self.size(dim);
  const auto bound = [size](int64_t i) { return i < 0 ? std::max<int64_t>(i + size, 0) : std::min(i, size); };
  const int64_t from = bound(start.value_or(0)), to = std::max(bound(stop.value_or(size)), from);
  return wtx::call<Tensor>("_slice", self, dim, from, (to - from + step - 1) / step, step);
}

inline Indexed apply(const Tensor& self, ArrayRef<TensorIndex> items) {
  using Kind = TensorIndex::Kind;
  int64_t taken = 0;
  for (const TensorIndex& i : items) {
    if (i.kind == Kind::Integer || i.kind == Kind::Slice) ++taken;
    if (i.kind == Kind::Tensor) taken += i.tensor.scalar_type() == kBool ? i.tensor.dim() : 1;
  }
  TORCH_CHECK_INDEX(taken <= self.dim(), "too many indices for tensor of dimension ", self.dim());
  Indexed out{self, {}, false};
  int64_t dim = 0;
  const auto take = [&](const Tensor& index) {
    out.indices.resize(static_cast<size_t>(dim));
    out.indices.push_back(index);
    out.by_tensors = true;
    dim += index.scalar_type() == kBool ? std::max<int64_t>(index.dim(), 1) : 1;
  };
  for (const TensorIndex& i : items) {
    if (i.kind == Kind::None) {
      out.view = out.view.unsqueeze(dim++);
    } else if (i.kind == Kind::Ellipsis) {
      dim += self.dim() - taken;
    } else if (i.kind == Kind::Integer) {
      out.view = out.view.select(dim, i.integer);
    } else if (i.kind == Kind::Slice) {
      out.view = sliced(out.view, dim, i.slice.start, i.slice.stop, i.slice.step);
      ++dim;
    } else if (i.kind == Kind::Boolean) {
      out.view = sliced(out.view.unsqueeze(dim), dim, 0, i.integer, 1);
      ++dim;
    } else {
      take(i.tensor.device() == self.device() ? i.tensor : i.tensor.to(self.device()));
    }
  }
  return out;
}

}  // namespace indexing

inline Tensor Tensor::index(ArrayRef<indexing::TensorIndex> items) const {
  const auto found = indexing::apply(*this, items);
  if (!found.by_tensors) return found.view;
  return wtx::call<Tensor>("_index", found.view, found.indices);
}
inline Tensor Tensor::index(std::initializer_list<indexing::TensorIndex> items) const {
  return index(ArrayRef<indexing::TensorIndex>(items));
}
inline Tensor& Tensor::index_put_(ArrayRef<indexing::TensorIndex> items, const Tensor& value) {
  const auto found = indexing::apply(*this, items);
  if (found.by_tensors) {
    wtx::call<Tensor>("index_put_", found.view, found.indices, value.to(options()), false);
  } else {
    found.view.copy_(value);
  }
  return *this;
}
inline Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> items, const Tensor& value) {
  return index_put_(ArrayRef<indexing::TensorIndex>(items), value);
}
inline Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> items, const Scalar& value) {
  return index_put_(items, wtx::call<Tensor>("full", IntArrayRef(), value, scalar_type(), device(), false));
}
inline Tensor Tensor::index_select_(const Tensor& i) const { return index({i}); }
inline Tensor Tensor::slice(int64_t dim, optional<int64_t> start, optional<int64_t> end, int64_t step) const {
  return indexing::sliced(*this, dim, start, end, step);
}
inline Tensor slice(const Tensor& self, int64_t dim = 0, optional<int64_t> start = nullopt,
                    optional<int64_t> end = nullopt, int64_t step = 1) {
  return self.slice(dim, start, end, step);
}
}  // namespace at
