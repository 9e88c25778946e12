// Checks of index arithmetic and launch sizes beyond 2^31 elements, where no memory is touched. Prints what
// is wrong.
#include <cstdio>
#include <random>

#include "kernels/cuda/common/groups.cuh"
#include "kernels/cuda/common/index.cuh"
#include "kernels/cuda/reduce/reduce.cuh"

namespace {

using namespace warptape;
using namespace warptape::kernels;
using namespace warptape::kernels::cuda;

int g_failures = 0;
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++g_failures;                                                   \
    }                                                                 \
  } while (0)

constexpr int64_t k31 = int64_t{1} << 31;

void division() {
  std::mt19937_64 random(1);
  for (int64_t d : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{251}, int64_t{65537}, k31 / 3,
                    k31 - 2, k31 - 1}) {
    const FastDivide divide(d);
    for (int64_t n : {int64_t{0}, int64_t{1}, d - 1, d, d + 1, k31 - 2, k31 - 1})
      if (n < k31) CHECK(divide.quotient<false>(n) == n / d);
    for (int i = 0; i < 100000; ++i) {
      const auto n = static_cast<int64_t>(random() >> 33);
      CHECK(divide.quotient<false>(n) == n / d);
      const auto wide = static_cast<int64_t>(random() >> 20);
      CHECK(divide.quotient<true>(wide) == wide / d);
    }
  }
}

// Views of a few elements to more than 2^32 bytes, in and out of memory's order.
void maps() {
  std::mt19937_64 random(2);
  const int64_t shapes[][4] = {{8555800, 251, 1, 1},   {3, 1 << 20, 5, 200}, {1, 1, 1, 2 * k31 + 5},
                               {2 * k31 + 5, 1, 1, 1}, {46341, 46341, 1, 1}, {40, 7, 11, 13}};
  for (const auto& sizes : shapes) {
    const int64_t dense[4] = {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
    const int64_t turned[4] = {1, sizes[0], sizes[0] * sizes[1], sizes[0] * sizes[1] * sizes[2]};
    const int64_t repeated[4] = {0, 3, 0, 1};
    const View a{nullptr, sizes, dense, 4, DType::Int8}, b{nullptr, sizes, turned, 4, DType::Int8},
        c{nullptr, sizes, repeated, 4, DType::Int8};
    IndexMap<3> map;
    CHECK(make_index_map(map, {&a, &b, &c}));
    const int64_t n = a.numel();
    CHECK(map.wide == (n >= k31));
    for (int i = 0; i < 20000; ++i) {
      int64_t linear = i < 4 ? n - 1 - i : static_cast<int64_t>(random() % static_cast<uint64_t>(n));
      const auto found = map(linear);
      int64_t expected[3] = {0, 0, 0};
      for (int d = 3; d >= 0; --d) {
        const int64_t at = linear % sizes[d];
        linear /= sizes[d];
        expected[0] += at * dense[d], expected[1] += at * turned[d], expected[2] += at * repeated[d];
      }
      for (int k = 0; k < 3; ++k) CHECK(found.of[k] == expected[k]);
    }
  }
}

// Rows as groups of threads share them: every element belongs to one group, and grids are within bounds.
void rows() {
  for (int64_t n : {int64_t{1}, int64_t{251}, int64_t{50257}, k31 + 3})
    for (int64_t count : {int64_t{1}, int64_t{8555800}, k31 / n + 1, k31 + 1}) {
      const RowGrid g = row_grid<BFloat16>({nullptr}, count, n, 1024);
      CHECK(g.blocks * (g.threads / g.lanes) >= count);
      CHECK((g.blocks - 1) * (g.threads / g.lanes) < count);
      CHECK(g.threads <= 1024 && g.lanes <= g.threads && (g.lanes & (g.lanes - 1)) == 0);
      if (n > k31) CHECK(!g.fits);
    }
  const int64_t n = k31 + 21;
  const auto* row = reinterpret_cast<const BFloat16*>(uintptr_t{256 + 6});  // never read
  const Pieces<BFloat16> pieces(row, n, true);
  int64_t elements = 0, singles = 0, last = -1;
  const int lanes = 1 << 20;  // so that few steps go over all of it
  for (int lane : {0, 1, 2, 3, 4, 5, 6, 7, lanes - 2, lanes - 1})
    for_row<2>(
        pieces, lane, lanes,
        [&](const auto& at) {
          for (int64_t i : at) {
            CHECK(i >= 0 && i + Pieces<BFloat16>::W <= n && (i + 3) % Pieces<BFloat16>::W == 0);
            elements += Pieces<BFloat16>::W;
            last = i > last ? i : last;
          }
        },
        [&](int64_t i) {
          CHECK(i >= 0 && i < n);
          ++singles;
        });
  CHECK(last > k31 - 16 * int64_t{lanes} && elements > 0 && singles > 0);
}

void parts() {
  for (int64_t blocks : {int64_t{1}, int64_t{251}, k31 - 1})
    for (int64_t steps : {int64_t{1}, int64_t{1000}, k31, 4 * k31}) {
      const int64_t found = reduce_parts(blocks, steps);
      CHECK(found >= 1 && found <= kMaxGridY);
      CHECK(ceil_div(steps, found) * found >= steps);
    }
}

}  // namespace

int main() {
  division();
  maps();
  rows();
  parts();
  return g_failures != 0;
}
