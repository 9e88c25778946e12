// Philox numbers, one counter per 64-bit lane, and dropout.

#include "kernels/random/random.h"

#include <utility>

#include "kernels/cpu/random/philox.h"
#include "kernels/cpu/vector/vec.h"
#include "kernels/cpu/view/convert.h"
#include "kernels/dispatch.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int kLanes = VInt::kLanes;
constexpr int64_t kBatch = 4 * kLanes;  // numbers that one batch of counters gives

// The product of the low halves of the lanes.
WT_FN VInt multiply_low(VInt a, VInt b) {
#if defined(__AVX512F__)
  return {(Raw<int64_t>)_mm512_mul_epu32((__m512i)a.v, (__m512i)b.v)};
#elif defined(__AVX2__)
  return {(Raw<int64_t>)_mm256_mul_epu32((__m256i)a.v, (__m256i)b.v)};
#else
  return {(Raw<int64_t>)_mm_mul_epu32((__m128i)a.v, (__m128i)b.v)};
#endif
}
WT_FN VInt high_half(VInt a) { return {(Raw<int64_t>)((Raw<uint64_t>)a.v >> 32)}; }

template <int... I>
WT_FN void interleave(VInt a, VInt b, uint32_t* out, std::integer_sequence<int, I...>) {
  const Raw<int64_t> low = {(I / 2 + I % 2 * kLanes)...};
  VInt(__builtin_shuffle(a.v, b.v, low)).store(out);
  VInt(__builtin_shuffle(a.v, b.v, low + kLanes / 2)).store(out + 2 * kLanes);
}

// The words of counters block, block + 1, ..., in order.
WT_FN void philox_batch(PhiloxKey key, uint64_t block, uint32_t* out) {
  VInt index;
  for (int i = 0; i < kLanes; ++i) index.v[i] = int64_t(block) + i;
  // Only the low halves of the lanes count until the end.
  VInt c0 = index, c1 = high_half(index), c2(int64_t(key.call)), c3(int64_t(key.call >> 32));
  uint32_t k0 = uint32_t(key.seed), k1 = uint32_t(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const VInt p0 = multiply_low(c0, VInt(int64_t{0xD2511F53}));
    const VInt p1 = multiply_low(c2, VInt(int64_t{0xCD9E8D57}));
    c0 = high_half(p1) ^ c1 ^ VInt(int64_t{k0});
    c2 = high_half(p0) ^ c3 ^ VInt(int64_t{k1});
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const VInt low(int64_t{0xffffffff});
  const VInt first = (c0 & low) | VInt(c1.v << 32), second = (c2 & low) | VInt(c3.v << 32);
  interleave(first, second, out, std::make_integer_sequence<int, kLanes>{});
}

}  // namespace

void philox_numbers(PhiloxKey key, uint64_t first, int64_t n, uint32_t* out) {
  alignas(64) uint32_t batch[kBatch];
  while (n > 0) {
    const int64_t skip = int64_t(first % 4);
    if (skip == 0 && n >= kBatch) {
      philox_batch(key, first / 4, out);
      first += kBatch, out += kBatch, n -= kBatch;
      continue;
    }
    philox_batch(key, first / 4, batch);
    const int64_t take = n < kBatch - skip ? n : kBatch - skip;
    std::memcpy(out, batch + skip, size_t(take) * 4);
    first += uint64_t(take), out += take, n -= take;
  }
}

void philox_numbers(PhiloxKey key, const PhiloxPart& part, uint64_t i, int64_t n, uint32_t* out) {
  for (int64_t take; n > 0; i += uint64_t(take), out += take, n -= take) {
    take = int64_t(part.together(i, uint64_t(n)));
    philox_numbers(key, part.at(i), take, out);
  }
}

namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kGrain = 32768;

// y may be x. Dropped elements are exactly 0, whatever they were.
void drop(int64_t n, float* y, const float* x, const uint32_t* numbers, uint32_t threshold, float factor) {
  for (int64_t i = 0; i < n; ++i) y[i] = numbers[i] >= threshold ? x[i] * factor : 0.0f;
}
void drop(int64_t n, double* y, const double* x, const uint32_t* numbers, uint32_t threshold, double factor) {
  for (int64_t i = 0; i < n; ++i) y[i] = numbers[i] >= threshold ? x[i] * factor : 0.0;
}

template <class T>
void dropout_range(const View& out, const View& x, double p, PhiloxKey key, const PhiloxPart& part,
                   int64_t begin, int64_t end) {
  const int64_t item = int64_t(itemsize(x.dtype));
  const uint32_t threshold = uint32_t(dropout_threshold(p));
  const T factor = T(1 / (1 - p));
  ConvertFn* to_t = converter(x.dtype, dtype_of<T>);
  ConvertFn* from_t = converter(dtype_of<T>, x.dtype);
  alignas(64) uint32_t numbers[kBlock];
  alignas(64) T values[kBlock];
  for (; begin < end; begin += kBlock) {
    const int64_t n = end - begin < kBlock ? end - begin : kBlock;
    const char* from = x.as<const char>() + begin * item;
    char* to = out.as<char>() + begin * item;
    philox_numbers(key, part, uint64_t(begin), n, numbers);
    if (x.dtype == dtype_of<T>) {
      drop(n, reinterpret_cast<T*>(to), reinterpret_cast<const T*>(from), numbers, threshold, factor);
      continue;
    }
    to_t(n, values, from);
    drop(n, values, values, numbers, threshold, factor);
    from_t(n, to, values);
  }
}

void dropout(const LaunchContext&, const View& out, const View& x, double p, PhiloxKey key,
             const PhiloxPart& part) {
  const int64_t n = x.numel();
  if (dropout_threshold(p) > 0xffffffffu) {
    std::memset(out.data, 0, size_t(n) * itemsize(out.dtype));
    return;
  }
  cpu::parallel_for(n, kGrain, [&](int64_t b, int64_t e) {
    if (x.dtype == DType::Float64)
      dropout_range<double>(out, x, p, key, part, b, e);
    else
      dropout_range<float>(out, x, p, key, part, b, e);
  });
}
WT_KERNEL(dropout, dropout);

void philox(const LaunchContext&, const View& out, PhiloxKey key, const PhiloxPart& part) {
  int64_t* o = out.as<int64_t>();
  cpu::parallel_for(out.numel(), kGrain, [&](int64_t b, int64_t e) {
    uint32_t numbers[kBlock];
    for (; b < e; b += kBlock) {
      const int64_t n = e - b < kBlock ? e - b : kBlock;
      philox_numbers(key, part, uint64_t(b), n, numbers);
      for (int64_t i = 0; i < n; ++i) o[b + i] = numbers[i];
    }
  });
}
WT_KERNEL(philox, philox);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
