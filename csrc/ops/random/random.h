// How random draws fill a tensor, on the host and on a device.
#pragma once

#include <mutex>

#include "kernels/dispatch.h"
#include "kernels/random/random.h"
#include "kernels/runtime/interrupt.h"
#include "op/op.h"

namespace warptape::ops {

using kernels::Compute;
using kernels::dispatch;
using kernels::View;

// An op with this argument draws in the dtype of out=.
inline const Arg kDrawDType{"dtype", none, kKeywordOnly};

// The given generator or the device's default one.
Ref<Generator> generator_for(const char* op, Device device, Generator* given);

// `t` with its dims in the order of its memory, in which PyTorch draws for a transposed tensor.
Tensor in_memory_order(const Tensor& t);

// A draw does not change with what it is drawn for: the backward of every one.
void zero_gradients(Node& n, Gradients& g);
inline constexpr NodeType kDraw{"UniformBackward0", zero_gradients};

inline bool on_device(const Tensor& t) { return t.device().is_accelerator(); }

// Fills a device's tensor: `fill(launch, view, key)` gets contiguous memory and a fresh key.
template <class F>
void fill_device(const char* op, const Tensor& t, bool integers_too, Generator* given, F&& fill) {
  WT_CHECK(integers_too || is_floating(t.dtype()), DtypeError, op, ": not implemented for ", t.dtype());
  if (t.numel() == 0) return;
  Ref<Generator> g = generator_for(op, t.device(), given);
  kernels::PhiloxKey key;
  {
    std::lock_guard lock(g->mutex);
    key = g->next_philox(PhiloxUse::Fill);
  }
  Tensor out = t.is_contiguous() ? t : empty(t.sizes(), options_of(t));
  fill(Launch(t.device()), out.view(), key);
  if (!out.same(t)) raw_copy(t, out);
}

// Draws between which the generator is free and the work can be interrupted. A multiple of the 16 that normal
// draws come in.
constexpr int64_t kPiece = 1 << 20;

// Calls f(begin, end) for pieces of [0, n) with the generator locked. The last piece is no shorter than the
// others, for normal draws look 16 back from the end.
template <class F>
void draw_in_pieces(Generator& g, int64_t n, F&& f) {
  for (int64_t begin = 0, end; begin < n; begin = end) {
    if (begin) kernels::cpu::poll_interrupt();
    end = n - begin < 2 * kPiece ? n : begin + kPiece;
    std::lock_guard lock(g.mutex);
    kernels::cpu::Uninterrupted scope;
    f(begin, end);
  }
}

// Fills `t` in the order of its elements: `fill(T* data, int64_t n, Generator&)` works on contiguous host
// memory, piece by piece.
template <class Types, class F>
void fill_host(const char* op, const Tensor& t, Generator* given, F&& fill) {
  if (t.device().is_meta() || t.numel() == 0) return;
  bool direct = t.is_contiguous();
  Tensor host = direct ? t : empty(t.sizes(), options_of(t));
  Ref<Generator> g = generator_for(op, t.device(), given);
  const auto draw = [&](auto tag) {
    auto* data = host.template data_as<typename decltype(tag)::type>();
    draw_in_pieces(*g, host.numel(),
                   [&](int64_t begin, int64_t end) { fill(data + begin, end - begin, *g); });
  };
  dispatch(Types{}, t.dtype(), draw, op);
  if (!direct) raw_copy(t, host);
}

// In-place draws: check, fill, count the change, forget what was there.
template <class F>
Tensor overwrite(const Tensor& t, const char* op, F&& fill) {
  const bool recorded = needs_grad(t);
  check_inplace(t, op, recorded);
  Ref<Node> n = recorded ? record(kDraw, t) : Ref<Node>();
  fill();
  t.bump_version();
  if (n) rebase_history(t, n);
  return t;
}

// Uniform numbers of [from, to), and normal numbers, on any device.
void fill_uniform(const char* op, const Tensor& t, double from, double to, Generator* g);
void fill_normal(const char* op, const Tensor& t, double mean, double std, Generator* g);
// Uniform numbers of [from, to).
WT_API Tensor draw_uniform(IntList sizes, TensorOptions options, double from, double to);
// A new tensor of independent normal numbers.
Tensor normal_of_size(double mean, double std, IntList size, Generator* g, std::optional<DType> dtype,
                      std::optional<Device> device, bool requires_grad);
// Fills t with 1 with probability p, else 0, and returns it.
WT_API Tensor fill_with_bernoulli(const Tensor& t, double p);
// Exponential numbers of rate 1.
WT_API Tensor draw_exponential(IntList sizes, TensorOptions options);

}  // namespace warptape::ops
