// Random tensors. On the CPU the Mersenne Twister is consumed in PyTorch's order, so the same seed gives the
// same numbers: rand, uniform_, randint, random_, randperm to the bit, randn and normal_ within rounding of
// log, sin and cos. Another device fills its tensors itself, from Philox (kernels/random/random.h).
#include "ops/random/random.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>
#include <numeric>

#include "core/mcg31.h"
#include "kernels/runtime/parallel.h"
#include "op/forms.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/sort.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "tensor/memory_format.h"

namespace warptape::ops {

// The given generator or the device's default one.
Ref<Generator> generator_for(const char* op, Device device, Generator* given) {
  if (!given) return default_generator(device);
  WT_CHECK(given->device() == device, Error, op, ": Expected a '", device,
           "' device type for generator but found '", given->device(), "'");
  return Ref<Generator>::share(given);
}

// `t` with its dims in the order of its memory, in which PyTorch draws for a transposed tensor.
Tensor in_memory_order(const Tensor& t) {
  if (t.is_contiguous()) return t;
  Shape dims(t.sizes().size(), 0), sizes, strides;
  std::iota(dims.begin(), dims.end(), 0);
  std::stable_sort(dims.begin(), dims.end(),
                   [&](int64_t a, int64_t b) { return t.strides()[a] > t.strides()[b]; });
  for (int64_t d : dims) {
    sizes.push_back(t.sizes()[d]);
    strides.push_back(t.strides()[d]);
  }
  return alias(t, sizes, strides, t.offset());
}

void zero_gradients(Node&, Gradients& g) {
  for (size_t i = 0; i < g.inputs(); ++i)
    if (g.wants(i)) g.set(i, zeros(g[0].sizes(), options_of(g[0])));
}

namespace {

using OptDType = std::optional<DType>;
using OptDevice = std::optional<Device>;

kernels::Slot<kernels::UniformFillFn> uniform_slot("uniform_fill");
kernels::Slot<kernels::NormalFillFn> normal_fill_slot("normal_fill");
kernels::Slot<kernels::ExponentialFillFn> exponential_slot("exponential_fill");
kernels::Slot<kernels::BernoulliFillFn> bernoulli_slot("bernoulli_fill");
kernels::Slot<kernels::RangeFillFn> range_slot("range_fill");

// ---- uniform -------------------------------------------------------------------------------------------

// One number of [0, 1): 53 bits for double, 24 for float and what is computed in float.
template <class T>
Compute<T> unit(Generator& g) {
  if constexpr (std::is_same_v<T, double>) {
    return g.uniform_double();
  } else {
    return g.uniform_float();
  }
}

}  // namespace

void fill_uniform(const char* op, const Tensor& t, double from, double to, Generator* g) {
  if (is_complex(t.dtype())) return fill_uniform(op, raw_parts(t), from, to, g);
  if (on_device(t))
    return fill_device(op, in_memory_order(t), false, g, [&](const Launch& l, const View& out, auto key) {
      uniform_slot(l, out, from, to, key);
    });
  fill_host<kernels::FloatTypes>(op, in_memory_order(t), g, [&](auto* data, int64_t n, Generator& gen) {
    using T = std::remove_pointer_t<decltype(data)>;
    auto a = static_cast<Compute<T>>(static_cast<T>(from)), b = static_cast<Compute<T>>(static_cast<T>(to));
    for (int64_t i = 0; i < n; ++i) data[i] = static_cast<T>(std::fma(unit<T>(gen), b - a, a));
  });
}

namespace {

Tensor uniform_impl(const Tensor& t, double from, double to, Generator* g) {
  WT_CHECK(from <= to, ValueError,
           "uniform_: uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  return overwrite(t, "uniform_", [&] { fill_uniform("uniform_", t, from, to, g); });
}

// ---- normal --------------------------------------------------------------------------------------------

// Box and Muller's transform on 8 pairs (element j with j + 8), as PyTorch lays them out.
template <class C>
void normal_16(C* block, C mean, C std) {
  for (int j = 0; j < 8; ++j) {
    C u1 = 1 - block[j], u2 = block[j + 8];
    C radius = std::sqrt(C(-2) * std::log(u1)), theta = C(2) * std::numbers::pi_v<C> * u2;
    block[j] = std::fma(radius * std::cos(theta), std, mean);
    block[j + 8] = std::fma(radius * std::sin(theta), std, mean);
  }
}

template <class T>
void normal_blocks(T* data, int64_t n, Generator& g, double mean, double std) {
  using C = Compute<T>;
  auto block = [&](int64_t at) {
    C values[16];
    for (C& v : values) v = unit<T>(g);
    normal_16<C>(values, static_cast<C>(mean), static_cast<C>(std));
    for (int j = 0; j < 16; ++j) data[at + j] = static_cast<T>(values[j]);
  };
  for (int64_t i = 0; i + 16 <= n; i += 16) block(i);
  if (n % 16 == 0) return;
  // PyTorch draws these and does not use them; for the half types it does not draw them either.
  for (int64_t i = n / 16 * 16; i < n && sizeof(T) > 2; ++i) unit<T>(g);
  block(n - 16);
}

kernels::Slot<kernels::NormalFn> normal_slot("normal");

// Float32, to PyTorch's bit: the polynomials of its logarithm and its sine and cosine are in the kernel.
void normal_blocks(float* data, int64_t n, Generator& g, double mean, double std) {
  auto draw = [&](float* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = g.uniform_float();
    const int64_t stride = 1;
    normal_slot(Launch(Device{}), View{to, &count, &stride, 1, DType::Float32}, mean, std);
  };
  draw(data, n);
  if (n % 16) draw(data + n - 16, 16);
}

}  // namespace

void fill_normal(const char* op, const Tensor& t, double mean, double std, Generator* g) {
  WT_CHECK(std >= 0, ValueError, op, ": normal expects std >= 0.0, but found std ", std);
  WT_CHECK(is_differentiable(t.dtype()), NotImplementedError, op, ": not implemented for ", t.dtype());
  // Each part has half of the variance.
  if (is_complex(t.dtype())) return fill_normal(op, raw_parts(t), mean, std / std::numbers::sqrt2, g);
  if (on_device(t))
    return fill_device(op, in_memory_order(t), false, g, [&](const Launch& l, const View& out, auto key) {
      normal_fill_slot(l, out, mean, std, key);
    });
  bool blocks = t.numel() >= 16 && t.is_contiguous();
  fill_host<kernels::FloatTypes>(op, in_memory_order(t), g, [&](auto* data, int64_t n, Generator& gen) {
    using T = std::remove_pointer_t<decltype(data)>;
    if (blocks) return normal_blocks(data, n, gen, mean, std);
    for (int64_t i = 0; i < n; ++i)
      data[i] = static_cast<T>(static_cast<Compute<T>>(gen.normal() * std + mean));
  });
}

namespace {

Tensor normal_impl(const Tensor& t, double mean, double std, Generator* g) {
  return overwrite(t, "normal_", [&] { fill_normal("normal_", t, mean, std, g); });
}

// ---- integers ------------------------------------------------------------------------------------------

// from + a draw of [0, range).
void fill_range(const char* op, const Tensor& t, int64_t from, uint64_t range, Generator* g) {
  if (on_device(t))
    return fill_device(op, in_memory_order(t), true, g, [&](const Launch& l, const View& out, auto key) {
      range_slot(l, out, from, range, key);
    });
  fill_host<kernels::AllTypes>(op, in_memory_order(t), g, [&](auto* data, int64_t n, Generator& gen) {
    using T = std::remove_pointer_t<decltype(data)>;
    for (int64_t i = 0; i < n; ++i) {
      uint64_t draw = range >= (uint64_t{1} << 32) ? gen.random64() : gen.random();
      auto v = static_cast<int64_t>(draw % range + static_cast<uint64_t>(from));
      data[i] = static_cast<T>(static_cast<Compute<T>>(v));
    }
  });
}

// Whether a dtype's range has the integer.
bool holds(DType t, int64_t v) {
  if (t == DType::Float16) return v >= -65504 && v <= 65504;
  if (is_floating(t)) return true;
  if (t == DType::Bool) return v == 0 || v == 1;
  const bool sign = has_sign(t);
  const auto bits = 8 * static_cast<int64_t>(itemsize(t)) - (sign ? 1 : 0);
  return bits >= 63 ? sign || v >= 0 : v >= (sign ? -(int64_t{1} << bits) : 0) && v < (int64_t{1} << bits);
}

void fill_integers(const char* op, const Tensor& t, int64_t from, int64_t to, Generator* g) {
  WT_CHECK(from < to, ValueError, op, ": random_ expects 'from' to be less than 'to', but got from=", from,
           " >= to=", to);
  WT_CHECK(holds(t.dtype(), from), Error, op, ": from is out of bounds for ", t.dtype());
  WT_CHECK(holds(t.dtype(), to - 1), Error, op, ": to - 1 is out of bounds for ", t.dtype());
  fill_range(op, t, from, static_cast<uint64_t>(to) - static_cast<uint64_t>(from), g);
}

// One more than the largest integer up to which a dtype represents all.
uint64_t exact_range(DType t) {
  constexpr uint64_t one = 1;
  constexpr uint64_t ranges[kNumDTypes] = {2,         256,  128, one << 15,       one << 31,
                                           one << 63, 2049, 257, (one << 24) + 1, (one << 53) + 1};
  return ranges[static_cast<int>(t)];
}

Tensor random_range_impl(const Tensor& t, int64_t from, std::optional<int64_t> to, Generator* g) {
  const auto end = to.value_or(static_cast<int64_t>(std::min<uint64_t>(exact_range(t.dtype()), INT64_MAX)));
  return overwrite(t, "random_", [&] { fill_integers("random_", t, from, end, g); });
}
Tensor random_to_impl(const Tensor& t, int64_t to, Generator* g) {
  return overwrite(t, "random_", [&] { fill_integers("random_", t, 0, to, g); });
}

// Without bounds: every value that the dtype represents exactly.
Tensor random_impl(const Tensor& t, Generator* g) {
  return overwrite(t, "random_", [&] { fill_range("random_", t, 0, exact_range(t.dtype()), g); });
}

// ---- Bernoulli, exponential ----------------------------------------------------------------------------

void check_probability(double p) {
  WT_CHECK(p >= 0 && p <= 1, ValueError, "bernoulli: Expected p_in >= 0 && p_in <= 1, got ", p);
}

// Where PyTorch draws by oneMKL: one draw of the generator seeds the numbers of a call.
#if defined(__x86_64__)
std::atomic<bool> mkl_bernoulli{bool(__builtin_cpu_is("intel"))};
#else
std::atomic<bool> mkl_bernoulli{false};
#endif
bool set_mkl_bernoulli(bool on) { return mkl_bernoulli.exchange(on); }
const Op<bool(bool)> set_mkl_bernoulli_op{
    "_set_mkl_bernoulli",
    set_mkl_bernoulli,
    kPrivate,
    {"on"},
    "Whether bernoulli_(p) on the CPU draws what PyTorch draws on Intel's processors; returns what it was."};

void fill_bernoulli_mkl(const Tensor& t, double p, Generator* given) {
  Tensor host = t.is_contiguous() ? t : empty(t.sizes(), options_of(t));
  Ref<Generator> g = generator_for("bernoulli_", t.device(), given);
  const auto draw = [&](auto tag) {
    // Before the generator moves: a region that has no memory for it yet ends the attempt here and calls
    // again.
    auto* data = host.template data_as<typename decltype(tag)::type>();
    uint32_t seed;
    {
      std::lock_guard lock(g->mutex);
      seed = g->random();
    }
    kernels::cpu::parallel_for(host.numel(), kPiece / 32, [&](int64_t begin, int64_t end) {
      Mcg31(seed, static_cast<uint64_t>(begin)).bernoulli(data + begin, end - begin, p);
    });
  };
  dispatch(kernels::AllTypes{}, t.dtype(), draw, "bernoulli_");
  if (!host.same(t)) raw_copy(t, host);
}

Tensor bernoulli_scalar_impl(const Tensor& t, double p, Generator* g) {
  check_probability(p);
  return overwrite(t, "bernoulli_", [&] {
    if (on_device(t))
      return fill_device("bernoulli_", t, true, g, [&](const Launch& l, const View& out, auto key) {
        bernoulli_slot(l, out, p, View{}, key);
      });
    if (mkl_bernoulli && !t.device().is_meta() && t.numel()) return fill_bernoulli_mkl(t, p, g);
    fill_host<kernels::AllTypes>(
        "bernoulli_", in_memory_order(t), g, [&](auto* data, int64_t n, Generator& gen) {
          using T = std::remove_pointer_t<decltype(data)>;
          for (int64_t i = 0; i < n; ++i)
            data[i] = static_cast<T>(static_cast<Compute<T>>(gen.uniform_double() < p));
        });
  });
}

// On a device the probabilities are not looked at: that would wait for it.
void fill_bernoulli_device(const Tensor& out, const Tensor& probabilities, Generator* g) {
  const DType t = probabilities.dtype() == DType::Float64 ? DType::Float64 : DType::Float32;
  Tensor p = empty(out.sizes(), {t, out.device()});
  raw_copy(p, probabilities);
  fill_device("bernoulli", out, true, g, [&](const Launch& l, const View& view, auto key) {
    bernoulli_slot(l, view, 0.0, p.view(), key);
  });
}

void fill_bernoulli(const Tensor& out, const Tensor& probabilities, Generator* g) {
  if (on_device(out)) return fill_bernoulli_device(out, probabilities, g);
  Tensor p = raw_contiguous(raw_cast(expand_view(probabilities, out.sizes(), "bernoulli_"), DType::Float64));
  for (int64_t i = 0; i < p.numel(); ++i) check_probability(p.data_as<double>()[i]);
  const double* next = p.data_as<double>();                   // the pieces come in order
  const bool wide = probabilities.dtype() == DType::Float64;  // as PyTorch draws: in the probabilities' dtype
  fill_host<kernels::AllTypes>("bernoulli", out, g, [&](auto* data, int64_t n, Generator& gen) {
    using T = std::remove_pointer_t<decltype(data)>;
    for (int64_t i = 0; i < n; ++i) {
      const double drawn = wide ? gen.uniform_double() : gen.uniform_float();
      data[i] = static_cast<T>(static_cast<Compute<T>>(drawn < *next++));
    }
  });
}
Tensor bernoulli_impl(const Tensor& x, Generator* g, OptDType dtype) {
  WT_CHECK(is_floating(x.dtype()), DtypeError, "bernoulli: expected probabilities of a floating dtype, got ",
           x.dtype());
  Tensor out = empty(x.sizes(), {dtype.value_or(x.dtype()), x.device()});
  if (!out.device().is_meta()) fill_bernoulli(out, x, g);
  if (needs_grad(x)) set_history(out, record(kDraw, x));
  return out;
}
// With probability p, whatever x holds.
Tensor bernoulli_number_impl(const Tensor& x, double p, Generator* g, OptDType dtype) {
  Tensor out = bernoulli_scalar_impl(empty_like_layout(x, dtype.value_or(x.dtype())), p, g);
  if (needs_grad(x)) set_history(out, record(kDraw, x));
  return out;
}
Tensor bernoulli_tensor_impl(const Tensor& t, const Tensor& p, Generator* g) {
  return overwrite(t, "bernoulli_", [&] {
    if (!t.device().is_meta()) fill_bernoulli(t, p, g);
  });
}

Tensor exponential_impl(const Tensor& t, double rate, Generator* g) {
  WT_CHECK(rate > 0, ValueError, "exponential_: exponential_ expects lambda > 0.0, but found lambda=", rate);
  return overwrite(t, "exponential_", [&] {
    if (on_device(t))
      return fill_device("exponential_", t, false, g, [&](const Launch& l, const View& out, auto key) {
        exponential_slot(l, out, rate, key);
      });
    fill_host<kernels::FloatTypes>("exponential_", t, g, [&](auto* data, int64_t n, Generator& gen) {
      using T = std::remove_pointer_t<decltype(data)>;
      for (int64_t i = 0; i < n; ++i)
        data[i] = static_cast<T>(static_cast<Compute<T>>(-std::log1p(-gen.uniform_double()) / rate));
    });
  });
}

// ---- factories -----------------------------------------------------------------------------------------

using Format = std::optional<std::string_view>;
Tensor checked_floats(const char* op, Tensor out, bool needs_grad) {
  WT_CHECK(is_differentiable(out.dtype()), DtypeError, op, ": expected a floating dtype, got ", out.dtype());
  if (needs_grad) set_requires_grad(out, true);
  return out;
}
Tensor fresh(IntList size, OptDType dtype, OptDevice device, bool needs_grad, const char* op) {
  const TensorOptions o{dtype.value_or(rank_context().default_dtype), device ? *device : default_device()};
  return checked_floats(op, empty(size, o), needs_grad);
}
Tensor like(const char* op, const Tensor& x, OptDType dtype, OptDevice device, Format format) {
  return empty_like_in(op, x, {dtype.value_or(x.dtype()), device.value_or(x.device())},
                       memory_format(op, format, MemoryFormat::Preserve));
}

Tensor rand_impl(IntList size, Generator* g, OptDType dtype, OptDevice device, bool needs_grad) {
  Tensor out = fresh(size, dtype, device, needs_grad, "rand");
  fill_uniform("rand", out, 0, 1, g);
  return out;
}
Tensor randn_impl(IntList size, Generator* g, OptDType dtype, OptDevice device, bool needs_grad) {
  Tensor out = fresh(size, dtype, device, needs_grad, "randn");
  fill_normal("randn", out, 0, 1, g);
  return out;
}
Tensor rand_like_impl(const Tensor& x, OptDType dtype, OptDevice device, bool needs_grad, Format format) {
  Tensor out = checked_floats("rand_like", like("rand_like", x, dtype, device, format), needs_grad);
  fill_uniform("rand_like", out, 0, 1, nullptr);
  return out;
}
Tensor randn_like_impl(const Tensor& x, OptDType dtype, OptDevice device, bool needs_grad, Format format) {
  Tensor out = checked_floats("randn_like", like("randn_like", x, dtype, device, format), needs_grad);
  fill_normal("randn_like", out, 0, 1, nullptr);
  return out;
}
Tensor randint_impl(int64_t low, int64_t high, IntList size, Generator* g, OptDType dtype, OptDevice device,
                    bool grad) {
  Tensor out = empty(size, {dtype.value_or(DType::Int64), device ? *device : default_device()});
  fill_integers("randint", out, low, high, g);
  if (grad) set_requires_grad(out, true);
  return out;
}
Tensor randint_high_impl(int64_t high, IntList size, Generator* g, OptDType dtype, OptDevice device,
                         bool grad) {
  return randint_impl(0, high, size, g, dtype, device, grad);
}
Tensor randint_like_impl(const Tensor& x, int64_t low, int64_t high, OptDType dtype, OptDevice device,
                         bool grad, Format format) {
  Tensor out = like("randint_like", x, dtype, device, format);
  fill_integers("randint_like", out, low, high, nullptr);
  if (grad) set_requires_grad(out, true);
  return out;
}
Tensor randint_like_high_impl(const Tensor& x, int64_t high, OptDType dtype, OptDevice device, bool grad,
                              Format format) {
  return randint_like_impl(x, 0, high, dtype, device, grad, format);
}

// The order that sorts random numbers of 63 bits: two of them are rarely equal, and those stay in order.
Tensor randperm_device(int64_t n, Generator* given, TensorOptions o) {
  Tensor numbers = empty(IntList{&n, 1}, {DType::Int64, o.device});
  fill_range("randperm", numbers, 0, uint64_t{1} << 63, given);
  return raw_cast(argsort(numbers, 0, false, true), o.dtype);
}

Tensor randperm_host(int64_t n, Generator* given, DType dtype) {
  Tensor wide = empty(IntList{&n, 1}, {DType::Int64, {}});
  auto* r = wide.data_as<int64_t>();
  for (int64_t i = 0; i < n; ++i) r[i] = i;
  Ref<Generator> g = generator_for("randperm", {}, given);
  draw_in_pieces(*g, n - 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::swap(r[i], r[i + static_cast<int64_t>(g->random() % static_cast<uint64_t>(n - i))]);
  });
  return raw_cast(wide, dtype);
}

Tensor randperm_impl(int64_t n, Generator* given, OptDType dtype, OptDevice device, bool grad) {
  WT_CHECK(n >= 0, ValueError, "randperm: n must be non-negative, got ", n);
  TensorOptions o{dtype.value_or(DType::Int64), device ? *device : default_device()};
  // PyTorch's limits: the integers up to which the dtype has all, but of bfloat16.
  const int64_t most = o.dtype == DType::Float16   ? (1 << 11) + 1
                       : o.dtype == DType::Float32 ? (1 << 24) + 1
                                                   : (int64_t{1} << 53) + 1;
  WT_CHECK(!is_floating(o.dtype) || n <= most, Error, "randperm: n cannot be greater than ", most, " for ",
           o.dtype, ", got ", n);
  if (n) check_fits(Scalar(n - 1), o.dtype);
  Tensor out = o.device.is_meta()          ? empty(IntList{&n, 1}, o)
               : o.device.is_accelerator() ? randperm_device(n, given, o)
                                           : randperm_host(n, given, o.dtype);
  if (grad) set_requires_grad(out, true);
  return out;
}

// ---- multinomial ---------------------------------------------------------------------------------------

void check_weights(const Tensor& x, int64_t samples, bool replacement) {
  WT_CHECK(x.ndim() == 1 || x.ndim() == 2, ShapeError, "multinomial: prob_dist must be 1 or 2 dim, got ", x);
  WT_CHECK(is_floating(x.dtype()), DtypeError,
           "multinomial: multinomial only supports floating-point dtypes for input, got: ", x.dtype());
  WT_CHECK(samples > 0, Error, "multinomial: cannot sample n_sample <= 0 samples, got ", samples);
  WT_CHECK(replacement || samples <= x.sizes().back(), Error,
           "multinomial: cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  WT_CHECK(x.sizes().back() > 0, ShapeError, "multinomial: expected at least one category, got ", x);
  if (x.device().is_meta() || x.numel() == 0) return;
  // NaN is an extreme of what it is in, and no comparison holds for it.
  const double low = item(amin(x, std::nullopt, false)).to_double();
  const double high = item(amax(x, std::nullopt, false)).to_double();
  WT_CHECK(low >= 0 && high < std::numeric_limits<double>::infinity(), Error,
           "multinomial: probability tensor contains either `inf`, `nan` or element < 0");
  const Tensor sums = low > 0 ? Tensor() : amax(x, IntList(Shape{-1}), false);
  WT_CHECK(low > 0 || item(amin(sums, std::nullopt, false)).to_double() > 0, Error,
           "multinomial: invalid multinomial distribution (sum of probabilities <= 0)");
}

// Draws of a row with replacement: the first category whose cumulative weight is not below a uniform number.
// The sums are rounded in the weights' dtype after each step, as PyTorch's are.
template <class T>
void draw_row(const T* weights, int64_t n, int64_t* out, int64_t samples, Generator& g) {
  std::vector<T> edges(static_cast<size_t>(n));
  std::partial_sum(weights, weights + n, edges.begin());
  const T sum = edges.back();
  for (T& e : edges) e /= sum;
  edges.back() = 1;
  for (int64_t i = 0; i < samples; ++i)
    out[i] = std::lower_bound(edges.begin(), edges.end(), g.uniform_double()) - edges.begin();
}

Tensor draw_with_replacement(const Tensor& x, int64_t samples, Generator* given) {
  Shape sizes = x.sizes();
  sizes.back() = samples;
  if (on_device(x)) {
    const Tensor edges = cumsum(cast(x, DType::Float64), -1, std::nullopt);
    const Tensor total = narrow(edges, -1, x.sizes().back() - 1, 1);
    const Tensor draws = rand_impl(sizes, given, DType::Float64, x.device(), false) * total;
    return clamp(searchsorted(edges, draws, false, false, std::nullopt, {}), std::nullopt,
                 Scalar(x.sizes().back() - 1));
  }
  const Tensor weights =
      raw_contiguous(raw_cast(x, x.dtype() == DType::Float64 ? DType::Float64 : DType::Float32));
  const Tensor out = empty(sizes, {DType::Int64, x.device()});
  Ref<Generator> g = generator_for("multinomial", x.device(), given);
  std::lock_guard lock(g->mutex);
  const auto draw = [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = x.sizes().back();
    for (int64_t row = 0; row < x.numel() / n; ++row)
      draw_row(weights.data_as<T>() + row * n, n, out.data_as<int64_t>() + row * samples, samples, *g);
  };
  dispatch(kernels::Types<float, double>{}, weights.dtype(), draw, "multinomial");
  return out;
}

Tensor multinomial_impl(const Tensor& given, int64_t samples, bool replacement, Generator* g) {
  const Tensor x = detach(given);
  check_weights(x, samples, replacement);
  if (x.device().is_meta() || x.numel() == 0) {
    Shape sizes = x.sizes();
    sizes.back() = samples;
    return empty(sizes, {DType::Int64, x.device()});
  }
  if (replacement && samples > 1) return draw_with_replacement(x, samples, g);
  // The largest of weight / Exp(1) are a draw without replacement (Efraimidis and Spirakis, 2006); in the
  // weights' own dtype, so that one seed gives PyTorch's draws.
  const Tensor races = x / exponential_impl(empty_like_layout(x, x.dtype()), 1, g);
  return std::get<1>(topk(races, samples, -1, true, true));
}

#define WT_OPTIONS \
  {"dtype", none, kKeywordOnly}, {"device", none, kKeywordOnly}, { "requires_grad", false, kKeywordOnly }
#define WT_FORMATTED \
  WT_OPTIONS, { "memory_format", none, kKeywordOnly }
#define WT_GENERATOR {"generator", none, kKeywordOnly}
const Arg kSelf{"input", kWritten};

const Op<Tensor(IntList, Generator*, OptDType, OptDevice, bool)> rand_op(
    "rand", rand_impl, kFunction | kOut | kComplex | kRandom, {{"size", kVarArgs}, WT_GENERATOR, WT_OPTIONS},
    "Uniform numbers of [0, 1)."),
    randn_op("randn", randn_impl, kFunction | kOut | kComplex | kRandom,
             {{"size", kVarArgs}, WT_GENERATOR, WT_OPTIONS}, "Standard normal numbers.");
const Op<Tensor(const Tensor&, OptDType, OptDevice, bool, Format)> rand_like_op(
    "rand_like", rand_like_impl, kFunction | kComplex | kRandom | kNonDifferentiable, {"input", WT_FORMATTED},
    "rand of input's sizes."),
    randn_like_op("randn_like", randn_like_impl, kFunction | kComplex | kRandom | kNonDifferentiable,
                  {"input", WT_FORMATTED}, "randn of input's sizes.");
const Op<Tensor(int64_t, IntList, Generator*, OptDType, OptDevice, bool)> randint_high_op(
    "randint", randint_high_impl, kFunction | kOut | kRandom, {"high", "size", WT_GENERATOR, WT_OPTIONS},
    "Integers from 0 to high - 1.");
const auto randint_op =
    overload_with(randint_high_op, randint_impl, {"low", "high", "size", WT_GENERATOR, WT_OPTIONS}, {},
                  "Integers from low to high - 1.");
const Op<Tensor(const Tensor&, int64_t, OptDType, OptDevice, bool, Format)> randint_like_high_op(
    "randint_like", randint_like_high_impl, kFunction | kRandom | kNonDifferentiable,
    {"input", "high", WT_FORMATTED}, "randint of input's sizes.");
const auto randint_like_op =
    overload_with(randint_like_high_op, randint_like_impl, {"input", "low", "high", WT_FORMATTED});
const Op<Tensor(int64_t, Generator*, OptDType, OptDevice, bool)> randperm_op("randperm", randperm_impl,
                                                                             kFunction | kOut | kRandom,
                                                                             {"n", WT_GENERATOR, WT_OPTIONS},
                                                                             "A random order of 0 .. n - 1.");
const Op<Tensor(const Tensor&, double, double, Generator*)> uniform_op(
    "uniform_", uniform_impl, kMethod | kComplex | kRandom, {kSelf, {"from", 0.0}, {"to", 1.0}, WT_GENERATOR},
    "Fills with uniform numbers of [from, to)."),
    normal_op("normal_", normal_impl, kMethod | kComplex | kRandom | kPointwise | kLinear,
              {kSelf, {"mean", 0.0}, {"std", 1.0}, WT_GENERATOR}, "Fills with normal numbers.");
const Op<Tensor(const Tensor&, Generator*)> random_op("random_", random_impl, kMethod | kRandom,
                                                      {kSelf, WT_GENERATOR},
                                                      "Fills with integers that the dtype holds.");
const auto random_to_op = overload_with(random_op, random_to_impl, {kSelf, "to", WT_GENERATOR}, {},
                                        "Fills with integers below `to`.");
const auto random_range_op = overload_with(random_op, random_range_impl, {kSelf, "from", "to", WT_GENERATOR},
                                           {}, "Fills with integers of [from, to).");
const Op<Tensor(const Tensor&, const Tensor&, Generator*)> bernoulli_tensor_op(
    "bernoulli_", bernoulli_tensor_impl, kMethod | kRandom, {kSelf, "p", WT_GENERATOR},
    "Fills with 1 where a draw is below p, else 0.");
const Op<Tensor(const Tensor&, double, Generator*)>
    bernoulli_scalar_op = overload_with(bernoulli_tensor_op, bernoulli_scalar_impl,
                                        {kSelf, {"p", 0.5, kDraws}, WT_GENERATOR}, {},
                                        "Fills with 1 with probability p, else 0."),
    exponential_op("exponential_", exponential_impl, kMethod | kRandom, {kSelf, {"lambd", 1.0}, WT_GENERATOR},
                   "Fills with exponential numbers of rate lambd.");
const Op<Tensor(const Tensor&, Generator*, OptDType)> bernoulli_op("bernoulli", bernoulli_impl,
                                                                   kFunction | kMethod | kOut | kRandom,
                                                                   {"input", WT_GENERATOR, kDrawDType},
                                                                   "1 with input's probabilities, else 0.");
const Op<Tensor(const Tensor&, int64_t, bool, Generator*)> multinomial_op(
    "multinomial", multinomial_impl, kFunction | kMethod | kOut | kOutExact | kRandom,
    {"input", "num_samples", {"replacement", false}, WT_GENERATOR},
    "Indices drawn with the probabilities (up to a factor) of input's last dim, int64 [*, num_samples].");
const auto bernoulli_number_op =
    overload_with(bernoulli_op, bernoulli_number_impl, {"input", {"p", kDraws}, WT_GENERATOR, kDrawDType}, {},
                  "1 with probability p, else 0.");

}  // namespace

Tensor draw_uniform(IntList sizes, TensorOptions options, double from, double to) {
  return uniform_impl(empty(sizes, options), from, to, nullptr);
}
Tensor fill_with_bernoulli(const Tensor& t, double p) { return bernoulli_scalar_impl(t, p, nullptr); }

Tensor draw_exponential(IntList sizes, TensorOptions options) {
  return exponential_impl(empty(sizes, options), 1, nullptr);
}

Tensor normal_of_size(double mean, double std, IntList size, Generator* g, std::optional<DType> dtype,
                      std::optional<Device> device, bool requires_grad) {
  Tensor out = fresh(size, dtype, device, requires_grad, "normal");
  fill_normal("normal", out, mean, std, g);
  return out;
}

}  // namespace warptape::ops
