#include "kernels/cpu/fft/fft_plan.h"

#include <cmath>
#include <complex>
#include <list>
#include <memory>
#include <mutex>
#include <numbers>
#include <type_traits>
#include <vector>

#include "kernels/runtime/interrupt.h"

namespace warptape::kernels::cpu {
namespace {

constexpr int64_t kShortLine = 256;              // not cut: its work fits the nearest cache
constexpr size_t kKeptBytes = size_t{64} << 20;  // of plans nobody uses now, by data type

// f(k) for k in [0, n), with a look for Ctrl-C now and then: plans of long lines take seconds.
template <class F>
void each(int64_t n, F&& f) {
  in_pieces(n, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) f(k);
  });
}

template <class R>
using Number = std::complex<R>;
// More exact than T, so that what is rounded to T at last has all its bits right.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 4, double, long double>;

template <class R>
Number<R> times(Number<R> a, Number<R> b) {  // complex's own looks for infinities
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

// exp(-2 pi i k / n), from an angle of at most a quarter of a right one.
template <class R>
Number<R> root(int64_t k, int64_t n) {
  const int64_t quarter = 4 * k / n, rest = 4 * k - quarter * n;  // the angle is (quarter + rest / n) pi / 2
  const bool late = 2 * rest > n;
  const R angle = std::numbers::pi_v<R> / 2 * static_cast<R>(late ? n - rest : rest) / static_cast<R>(n);
  const R c = std::cos(angle), s = std::sin(angle);
  const Number<R> z = late ? Number<R>(s, -c) : Number<R>(c, -s);
  switch (quarter) {
    case 0:
      return z;
    case 1:
      return {z.imag(), -z.real()};
    case 2:
      return -z;
    default:
      return {-z.imag(), z.real()};
  }
}

// All of them: products out of two tables of about sqrt(n).
template <class R>
class Roots {
 public:
  explicit Roots(int64_t n) {
    while (int64_t{1} << 2 * shift_ < n) ++shift_;
    const int64_t few = int64_t{1} << shift_;
    for (int64_t k = 0; k < few && k < n; ++k) fine_.push_back(root<R>(k, n));
    for (int64_t k = 0; k < n; k += few) coarse_.push_back(root<R>(k, n));
  }
  Number<R> operator()(int64_t k) const {  // 0 <= k < n
    return times(coarse_[static_cast<size_t>(k >> shift_)],
                 fine_[static_cast<size_t>(k & ((int64_t{1} << shift_) - 1))]);
  }

 private:
  int shift_ = 0;
  std::vector<Number<R>> fine_, coarse_;
};

// In place, of a power of two: only filters of plans are made so.
template <class R>
void transform(std::vector<Number<R>>& x) {
  const auto n = static_cast<int64_t>(x.size());
  each(n - 1, [&, j = int64_t{0}](int64_t i) mutable {
    int64_t bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i + 1 < j) std::swap(x[size_t(i + 1)], x[size_t(j)]);
  });
  const Roots<R> roots(n);
  std::vector<Number<R>> w(static_cast<size_t>(n / 2));
  each(n / 2, [&](int64_t k) { w[size_t(k)] = roots(k); });
  for (int64_t half = 1; half < n; half *= 2)
    each(n / 2, [&](int64_t pair) {
      const int64_t k = pair & (half - 1), i = 2 * (pair - k);
      const Number<R> a = x[size_t(i + k)], b = times(x[size_t(i + k + half)], w[size_t(k * (n / 2 / half))]);
      x[size_t(i + k)] = a + b;
      x[size_t(i + k + half)] = a - b;
    });
}

template <class T>
struct Holder {
  FftPlan<T> plan;
  std::vector<T> roots, half, turn, chirp, filter;
  std::shared_ptr<const Holder> of_columns, of_rows, padded;

  explicit Holder(int64_t n);
  size_t bytes() const {
    return sizeof(*this) +
           sizeof(T) * (roots.size() + half.size() + turn.size() + chirp.size() + filter.size());
  }

 private:
  bool cut_into_steps();
  void add_step(int radix, int64_t rest);
  void cut_line();
  void make_chirp();
};

template <class T>
void put(std::vector<T>& to, Number<Wide<T>> z) {
  to.push_back(static_cast<T>(z.real()));
  to.push_back(static_cast<T>(z.imag()));
}

template <class T>
std::shared_ptr<const Holder<T>> plan_of(int64_t n) {
  static std::mutex mutex;
  // The last one used comes first. Never destroyed: threads may still run when the process ends.
  static auto& kept = *new std::list<std::shared_ptr<const Holder<T>>>;
  {
    std::lock_guard lock(mutex);
    for (auto i = kept.begin(); i != kept.end(); ++i)
      if ((*i)->plan.n == n) {
        kept.splice(kept.begin(), kept, i);
        return kept.front();
      }
  }
  auto made = std::make_shared<const Holder<T>>(n);  // two threads may make the same: no harm
  std::lock_guard lock(mutex);
  kept.push_front(made);
  size_t total = 0;
  for (auto i = kept.begin(); i != kept.end();) {
    total += (*i)->bytes();
    i = total > kKeptBytes ? kept.erase(i) : std::next(i);
  }
  return made;
}

template <class T>
Holder<T>::Holder(int64_t n) {
  plan.n = n;
  const Roots<Wide<T>> of_twice(2 * n);
  each(n / 2 + 1, [&](int64_t k) { put(half, of_twice(k)); });
  if (cut_into_steps())
    cut_line();
  else
    make_chirp();
  plan.roots = roots.data(), plan.half = half.data();
  plan.chirp = chirp.data(), plan.filter = filter.data();
}

template <class T>
void Holder<T>::add_step(int radix, int64_t rest) {
  FftStep& s = plan.step[plan.steps++];
  s = {radix, rest, static_cast<int64_t>(roots.size()), 0};
  const Roots<Wide<T>> all(radix * rest);
  each(rest, [&](int64_t p) {
    for (int k = 1; k < radix; ++k) put(roots, all(p * k));
  });
  s.own_roots = static_cast<int64_t>(roots.size());
  if (radix % 2 == 0) return;
  for (int k = 0; k < radix; ++k) roots.push_back(static_cast<T>(all(k * rest).real()));
  for (int k = 0; k < radix; ++k) roots.push_back(static_cast<T>(-all(k * rest).imag()));
}

template <class T>
bool Holder<T>::cut_into_steps() {
  int64_t largest = 1, left = plan.n;
  for (int64_t p = 2; p * p <= left; ++p)
    for (; left % p == 0; left /= p) largest = p;
  if (std::max(largest, left) > kLargestRadix) return false;
  left = plan.n;
  // As few steps as can be; 16 fills the registers. 32 is 8 x 4 rather than 16 x 2.
  while (left % 16 == 0 && left != 32) add_step(16, left /= 16);
  for (const int radix : {8, 4})
    while (left % radix == 0) add_step(radix, left /= radix);
  for (int p = 2; left > 1; ++p)
    while (left % p == 0) add_step(p, left /= p);
  return true;
}

template <class T>
void Holder<T>::cut_line() {
  if (plan.n <= kShortLine) return;
  auto rows = static_cast<int64_t>(std::sqrt(static_cast<double>(plan.n)));
  while (plan.n % rows != 0) --rows;
  if (rows < 8) return;
  plan.rows = rows, plan.columns = plan.n / rows;
  of_columns = plan_of<T>(plan.rows), of_rows = plan_of<T>(plan.columns);
  plan.of_columns = &of_columns->plan, plan.of_rows = &of_rows->plan;
  turn.resize(2 * static_cast<size_t>(plan.n));
  const Roots<Wide<T>> all(plan.n);
  each(plan.n, [&](int64_t i) {
    const Number<Wide<T>> z = all(i / plan.columns * (i % plan.columns));
    turn[size_t(i)] = static_cast<T>(z.real()), turn[size_t(plan.n + i)] = static_cast<T>(z.imag());
  });
  plan.turn_re = turn.data(), plan.turn_im = turn.data() + plan.n;
}

template <class T>
void Holder<T>::make_chirp() {
  const int64_t n = plan.n;
  int64_t m = 1;
  while (m < 2 * n - 1) m *= 2;
  padded = plan_of<T>(m);
  plan.padded = &padded->plan;
  const Roots<Wide<T>> all(2 * n);
  std::vector<Number<Wide<T>>> conjugate(static_cast<size_t>(m));
  each(n, [&](int64_t k) {
    const auto square = static_cast<int64_t>(static_cast<__int128>(k) * k % (2 * n));
    const Number<Wide<T>> z = all(square);
    put(chirp, z);
    conjugate[size_t(k)] = conjugate[size_t(k ? m - k : 0)] = std::conj(z);
  });
  transform(conjugate);
  each(m, [&](int64_t k) { put(filter, conjugate[size_t(k)]); });
}

}  // namespace

template <class T>
FftPlanOf<T>::FftPlanOf(int64_t n) {
  auto* held = new std::shared_ptr<const Holder<T>>(plan_of<T>(n));
  owner_ = held;
  plan_ = &(*held)->plan;
}

template <class T>
FftPlanOf<T>::~FftPlanOf() {
  delete static_cast<std::shared_ptr<const Holder<T>>*>(owner_);
}

template class FftPlanOf<float>;
template class FftPlanOf<double>;

}  // namespace warptape::kernels::cpu
