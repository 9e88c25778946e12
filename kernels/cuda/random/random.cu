// Random numbers by index (kernels/random/random.h): dropout, the numbers themselves, and fills by
// distribution. A thread takes four elements or a multiple, for that is what one Philox counter gives.
#include "kernels/random/random.h"

#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/random/philox.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;

dim3 blocks_for(int64_t n, int per_thread) {
  return dim3(unsigned(ceil_div(n, int64_t(kThreads) * per_thread)));
}

// The key with what a captured graph adds, read once a thread.
WT_DEVICE PhiloxKey resolved(PhiloxKey key) {
  if (!key.captured) return key;
  return {key.captured[0], key.call + key.captured[1], nullptr};
}

// ---- dropout ----

template <class T> inline constexpr int kDropoutWidth = kPackedWidth<T> < 4 ? 4 : kPackedWidth<T>;

template <class T>
struct DropoutArgs {
  T* out;
  const T* x;
  int64_t n;
  uint32_t threshold;
  bool none;    // nothing is kept
  bool packed;  // aligned, and what a thread takes starts with the first number of a counter
  Compute<T> factor;
  PhiloxKey key;
  PhiloxPart part;

  WT_DEVICE T apply(T value, uint32_t number) const {
    return narrow<T>(!none && number >= threshold ? widen<Compute<T>>(value) * factor : Compute<T>(0));
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(DropoutArgs<T> a) {
  constexpr int W = kDropoutWidth<T>;
  const PhiloxKey key = resolved(a.key);
  const int64_t block = int64_t(blockIdx.x) * (kThreads * W);
  if (a.packed && block + kThreads * W <= a.n) {
    const int64_t i = block + threadIdx.x * W;
    const uint64_t counter = a.part.at(i) / 4;
    auto x = load_packed<W>(a.x + i);
#pragma unroll
    for (int q = 0; q < W / 4; ++q) {
      const PhiloxBlock numbers = philox(key, counter + q);
#pragma unroll
      for (int k = 0; k < 4; ++k) x[4 * q + k] = a.apply(x[4 * q + k], numbers.words[k]);
    }
    store_packed(a.out + i, x);
    return;
  }
  const int64_t end = min(a.n, block + kThreads * W);
  for (int64_t i = block + threadIdx.x; i < end; i += kThreads)
    a.out[i] = a.apply(a.x[i], philox_word(key, a.part.at(i)));
}

void dropout(const LaunchContext& ctx, const View& out, const View& x, double p, PhiloxKey key,
             const PhiloxPart& part) {
  const uint64_t threshold = dropout_threshold(p);
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    constexpr int W = kDropoutWidth<T>;
    const bool even =
        part.columns ? part.column % 4 == 0 && part.width % 4 == 0 && part.columns % W == 0
                     : part.first % 4 == 0 && part.stride % 4 == 0 && part.pair % 4 == 0 && part.run % W == 0;
    const bool packed = even && is_aligned(out.data, 16) && is_aligned(x.data, 16);
    const DropoutArgs<T> a{out.as<T>(),
                           x.as<const T>(),
                           x.numel(),
                           uint32_t(threshold),
                           threshold > 0xffffffffu,
                           packed,
                           Compute<T>(1 / (1 - p)),
                           key,
                           part};
    launch(ctx, "dropout", dropout_kernel<T>, blocks_for(a.n, W), dim3(kThreads), 0, a);
  });
}

// ---- fills ----

// Number i of [0, 1) from the words of a counter (float) or of two (double).
WT_DEVICE void unit(const uint32_t* words, int i, float& value) { value = float(words[i] >> 8) * 0x1p-24f; }
WT_DEVICE void unit(const uint32_t* words, int i, double& value) {
  const uint64_t both = uint64_t(words[2 * i]) << 32 | words[2 * i + 1];
  value = double(both >> 11) * 0x1p-53;
}

template <class T> inline constexpr int kWordsEach = std::is_same_v<Compute<T>, double> ? 2 : 1;

// Distributions: four elements, the first of them number `i`, from the words of their counters.
template <class T>
struct UniformFill {
  static constexpr int kWords = kWordsEach<T>;
  Compute<T> from, to;
  WT_DEVICE void operator()(const uint32_t* words, int64_t, int, Packed<T, 4>& out) const {
    using C = Compute<T>;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      C u;
      unit(words, k, u);
      const T value = narrow<T>(fma(u, to - from, from));
      out[k] = widen<C>(value) >= to ? narrow<T>(from) : value;
    }
  }
};

template <class T>
struct NormalFill {
  static constexpr int kWords = kWordsEach<T>;
  Compute<T> mean, std;
  WT_DEVICE void operator()(const uint32_t* words, int64_t, int, Packed<T, 4>& out) const {
    using C = Compute<T>;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      C u, v;
      if constexpr (std::is_same_v<C, double>) {
        unit(words, k, u);
        unit(words, k + 1, v);
        u = 1 - u;
      } else {
        u = fma(C(words[k]), 0x1p-32f, 0x1p-33f);
        v = C(words[k + 1]) * 0x1p-32f;
      }
      const C radius = sqrt(C(-2) * log(u)), angle = C(6.283185307179586) * v;
      out[k] = narrow<T>(fma(radius * cos(angle), std, mean));
      out[k + 1] = narrow<T>(fma(radius * sin(angle), std, mean));
    }
  }
};

template <class T>
struct ExponentialFill {
  static constexpr int kWords = kWordsEach<T>;
  Compute<T> rate;
  WT_DEVICE void operator()(const uint32_t* words, int64_t, int, Packed<T, 4>& out) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Compute<T> u;
      unit(words, k, u);
      out[k] = narrow<T>(-log1p(-u) / rate);
    }
  }
};

template <class T>
struct BernoulliFill {
  static constexpr int kWords = 1;
  double p;
  const void* probabilities;
  DType dtype;
  WT_DEVICE void operator()(const uint32_t* words, int64_t i, int count, Packed<T, 4>& out) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      double least = p;
      if (probabilities && k < count)
        least = dtype == DType::Float64 ? static_cast<const double*>(probabilities)[i + k]
                                        : double(static_cast<const float*>(probabilities)[i + k]);
      out[k] = narrow<T>(Compute<T>(double(words[k]) < least * 0x1p32));
    }
  }
};

// Words is 2 where the range does not fit 32 bits.
template <class T, int Words>
struct RangeFill {
  static constexpr int kWords = Words;
  uint64_t from, range;
  WT_DEVICE void operator()(const uint32_t* words, int64_t, int, Packed<T, 4>& out) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint64_t draw = words[k];
      if constexpr (Words == 2) draw = uint64_t(words[2 * k]) << 32 | words[2 * k + 1];
      if (Words == 2 && range != 0)
        draw %= range;
      else if (Words == 1 && range <= 0xffffffffu)
        draw = uint32_t(draw) % uint32_t(range);
      out[k] = narrow<T>(Compute<T>(int64_t(from + draw)));
    }
  }
};

template <class T, class F>
__global__ void __launch_bounds__(kThreads) fill_kernel(T* out, int64_t n, PhiloxKey given, F fill) {
  const int64_t group = int64_t(blockIdx.x) * kThreads + threadIdx.x, i = 4 * group;
  if (i >= n) return;
  const PhiloxKey key = resolved(given);
  uint32_t words[4 * F::kWords];
#pragma unroll
  for (int q = 0; q < F::kWords; ++q) {
    const PhiloxBlock numbers = philox(key, uint64_t(group) * F::kWords + q);
#pragma unroll
    for (int k = 0; k < 4; ++k) words[4 * q + k] = numbers.words[k];
  }
  const int count = int(min(int64_t(4), n - i));
  Packed<T, 4> values;
  fill(words, i, count, values);
  if (count == 4 && reinterpret_cast<uintptr_t>(out) % alignof(Packed<T, 4>) == 0) {
    store_packed(out + i, values);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (k < count) out[i + k] = values[k];
}

template <class T, class F>
void run_fill(const LaunchContext& ctx, const char* op, const View& out, const PhiloxKey& key,
              const F& fill) {
  const int64_t n = out.numel();
  launch(ctx, op, fill_kernel<T, F>, blocks_for(n, 4), dim3(kThreads), 0, out.as<T>(), n, key, fill);
}

void uniform_fill(const LaunchContext& ctx, const View& out, double from, double to, PhiloxKey key) {
  dispatch(FloatTypes{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    // Rounded to T first, by way of float where T is narrower: conversions of the host.
    const auto rounded = [](double v) {
      if constexpr (std::is_same_v<T, C>)
        return C(v);
      else
        return C(T(C(v)));
    };
    run_fill<T>(ctx, "uniform_fill", out, key, UniformFill<T>{rounded(from), rounded(to)});
  });
}

void normal_fill(const LaunchContext& ctx, const View& out, double mean, double std, PhiloxKey key) {
  dispatch(FloatTypes{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    run_fill<T>(ctx, "normal_fill", out, key, NormalFill<T>{Compute<T>(mean), Compute<T>(std)});
  });
}

void exponential_fill(const LaunchContext& ctx, const View& out, double rate, PhiloxKey key) {
  dispatch(FloatTypes{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    run_fill<T>(ctx, "exponential_fill", out, key, ExponentialFill<T>{Compute<T>(rate)});
  });
}

void bernoulli_fill(const LaunchContext& ctx, const View& out, double p, const View& probabilities,
                    PhiloxKey key) {
  dispatch(AllTypes{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    run_fill<T>(ctx, "bernoulli_fill", out, key,
                BernoulliFill<T>{p, probabilities.data, probabilities.dtype});
  });
}

void range_fill(const LaunchContext& ctx, const View& out, int64_t from, uint64_t range, PhiloxKey key) {
  dispatch(AllTypes{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (range > 0 && range <= uint64_t{1} << 32)
      run_fill<T>(ctx, "range_fill", out, key, RangeFill<T, 1>{uint64_t(from), range});
    else
      run_fill<T>(ctx, "range_fill", out, key, RangeFill<T, 2>{uint64_t(from), range});
  });
}

// ---- the numbers themselves ----

__global__ void __launch_bounds__(kThreads)
    philox_kernel(int64_t* out, int64_t n, PhiloxKey key, PhiloxPart part) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) out[i] = philox_word(key, part.at(uint64_t(i)));
}

void philox_numbers(const LaunchContext& ctx, const View& out, PhiloxKey key, const PhiloxPart& part) {
  const int64_t n = out.numel();
  launch(ctx, "philox", philox_kernel, blocks_for(n, 1), dim3(kThreads), 0, out.as<int64_t>(), n, key, part);
}

}  // namespace

WT_KERNEL(dropout, dropout);
WT_KERNEL(philox, philox_numbers);
WT_KERNEL(uniform_fill, uniform_fill);
WT_KERNEL(normal_fill, normal_fill);
WT_KERNEL(exponential_fill, exponential_fill);
WT_KERNEL(bernoulli_fill, bernoulli_fill);
WT_KERNEL(range_fill, range_fill);

}  // namespace warptape::kernels::cuda
