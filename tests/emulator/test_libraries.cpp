// Checks of what the plugin's host code works out without a GPU: how a product is put to cuBLAS, what is kept
// per shape, where libraries are found. Run with a check's name; fails, or prints what the check is about.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/common/plan_cache.h"
#include "kernels/cuda/gemm/matmul_layout.h"
#include "kernels/cuda/libraries/library.h"

namespace warptape::kernels::cuda {
[[noreturn]] void raise_library_error(const std::string& text) { throw std::runtime_error(text); }
std::vector<std::string> package_folders() {
  const char* folder = std::getenv("PACKAGES");
  return folder ? std::vector<std::string>{folder} : std::vector<std::string>{};
}
}  // namespace warptape::kernels::cuda

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

// ---- products -------------------------------------------------------------------------------------------

using Values = std::vector<double>;

Values numbered(int64_t n, double first) {
  Values v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = first + static_cast<double>(i * 7 % 13);
  return v;
}

// What cuBLAS does by its documentation: D[i, j] = sum_k op(L)[i, k] op(R)[k, j] + bias[i], all by columns.
void blas(const ColumnProduct& p, const double* left, const double* right, const double* bias, double* d) {
  auto read = [](const ColumnMajor& x, const double* data, int64_t i, int64_t j) {
    const int64_t r = x.transpose ? j : i, c = x.transpose ? i : j;
    CHECK(r < x.rows && c < x.cols && x.ld >= x.rows);
    return data[r + c * x.ld];
  };
  CHECK(p.ldd >= p.rows);
  for (int64_t i = 0; i < p.rows; ++i)
    for (int64_t j = 0; j < p.cols; ++j) {
      double sum = bias ? bias[i] : 0;
      for (int64_t k = 0; k < p.depth; ++k) sum += read(p.left, left, i, k) * read(p.right, right, k, j);
      d[i + j * p.ldd] = sum;
    }
}

void blas_batches(const MatmulPlan& plan, const ColumnProduct& p) {
  const Batches& b = p.batches;
  auto at = [](const void* data, int64_t offset) { return static_cast<const double*>(data) + offset; };
  for (int64_t o = 0; o < b.outer; ++o)
    for (int64_t i = 0; i < b.count; ++i)
      blas(p, at(plan.b.data, o * b.outer_strides[1] + i * b.strides[1]),
           at(plan.a.data, o * b.outer_strides[0] + i * b.strides[0]), static_cast<const double*>(plan.bias),
           static_cast<double*>(plan.c.data) + o * b.outer_strides[2] + i * b.strides[2]);
}

// The same by the contract's words.
double by_contract(const MatmulPlan& p, int64_t b0, int64_t b1, int64_t i, int64_t j) {
  auto read = [&](const MatrixRef& x, int64_t r, int64_t c) {
    return static_cast<const double*>(
        x.data)[b0 * x.batch_strides[0] + b1 * x.batch_strides[1] + r * x.row_stride + c * x.col_stride];
  };
  double sum = p.bias ? static_cast<const double*>(p.bias)[j] : 0;
  for (int64_t k = 0; k < p.k; ++k) sum += read(p.a, i, k) * read(p.b, k, j);
  return sum;
}

struct Batching {
  int64_t sizes[2], a[2], b[2];  // strides in matrices
  int64_t count, outer;          // what is expected
};

void check_product(int64_t m, int64_t n, int64_t k, bool a_by_columns, bool b_by_columns, int64_t pad,
                   const Batching& batching) {
  const int64_t a_size = (m + pad) * (k + pad), b_size = (k + pad) * (n + pad), c_size = m * n;
  Values a = numbered(a_size * 12, 1), b = numbered(b_size * 12, -3), c(static_cast<size_t>(c_size * 12));
  Values bias = numbered(n, 100);
  MatmulPlan p{};
  p.dtype = DType::Float64;
  p.m = m, p.n = n, p.k = k;
  p.a = {a.data(), a_by_columns ? 1 : k + pad, a_by_columns ? m + pad : 1, {}};
  p.b = {b.data(), b_by_columns ? 1 : n + pad, b_by_columns ? k + pad : 1, {}};
  p.c = {c.data(), n, 1, {batching.sizes[1] * c_size, c_size}};
  for (int d = 0; d < 2; ++d) {
    p.batch[d] = batching.sizes[d];
    p.a.batch_strides[d] = batching.a[d] * a_size;
    p.b.batch_strides[d] = batching.b[d] * b_size;
  }
  p.bias = bias.data();
  ColumnProduct shape;
  bool copy_a = false, copy_b = false;
  CHECK(column_product(p, shape, copy_a, copy_b));
  CHECK(shape.batches.count == batching.count && shape.batches.outer == batching.outer);
  blas_batches(p, shape);
  for (int64_t b0 = 0; b0 < p.batch[0]; ++b0)
    for (int64_t b1 = 0; b1 < p.batch[1]; ++b1)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          CHECK(c[static_cast<size_t>((b0 * p.batch[1] + b1) * c_size + i * n + j)] ==
                by_contract(p, b0, b1, i, j));
}

void products() {
  const Batching batchings[] = {
      {{1, 1}, {0, 0}, {0, 0}, 1, 1},  {{1, 5}, {0, 1}, {0, 1}, 5, 1},
      {{4, 1}, {2, 0}, {1, 0}, 4, 1},  {{3, 4}, {4, 1}, {4, 1}, 12, 1},  // evenly apart: one call
      {{3, 4}, {0, 0}, {4, 1}, 12, 1},                                   // one A for all
      {{3, 4}, {4, 1}, {0, 1}, 4, 3},  // B repeats: the longer dim in one call
      {{4, 3}, {1, 4}, {3, 1}, 4, 3},  // A is transposed
  };
  for (const Batching& batching : batchings)
    for (int layout = 0; layout < 4; ++layout)
      for (int64_t pad : {int64_t{0}, int64_t{3}})
        for (auto [m, n, k] : {std::array<int64_t, 3>{3, 4, 5}, {1, 4, 5}, {3, 1, 5}, {3, 4, 1}, {1, 1, 1}})
          check_product(m, n, k, layout & 1, layout & 2, pad, batching);
}

// What cuBLAS cannot be told is to be copied.
void copies() {
  ColumnMajor x;
  CHECK(!read_transposed(3, 4, 8, 2, x));  // no unit stride
  CHECK(!read_transposed(3, 4, 0, 1, x));  // one row repeated
  CHECK(!read_transposed(3, 4, 1, 0, x));
  CHECK(!read_transposed(3, 4, 2, 1, x));  // rows that lie upon each other
  CHECK(read_transposed(1, 4, 0, 1, x) && !x.transpose && x.ld == 4);
  CHECK(read_transposed(3, 1, 5, 0, x) && !x.transpose && x.ld == 5);
  CHECK(read_transposed(3, 1, 1, 0, x) && x.ld >= x.rows);
}

void cache() {
  PlanCache<2, int> kept(2);
  int made = 0;
  auto get = [&](int64_t key) { return *kept.get({key, 0}, [&] { return std::make_shared<int>(++made); }); };
  CHECK(get(1) == 1 && get(2) == 2 && get(1) == 1);
  CHECK(get(3) == 3);  // forgets 2, used longest ago
  CHECK(get(1) == 1 && get(2) == 4);
  CHECK(kept.size() == 2);
}

// ---- libraries ------------------------------------------------------------------------------------------

void folders() {
  for (const std::string& folder : library_folders()) puts(folder.c_str());
}

void versions() {
  std::vector<std::pair<std::string, std::string>> found;
  append_library_versions(found);
  for (const auto& [name, version] : found) printf("%s: %s\n", name.c_str(), version.c_str());
}

void symbol() {
  try {
    library_symbol(Library::CublasLt, "cublasLtOfTomorrow");
  } catch (const std::runtime_error& e) {
    puts(e.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string check = argc > 1 ? argv[1] : "";
  const std::pair<const char*, void (*)()> checks[] = {{"products", products}, {"copies", copies},
                                                       {"cache", cache},       {"folders", folders},
                                                       {"versions", versions}, {"symbol", symbol}};
  for (auto [name, run] : checks)
    if (check == name) {
      run();
      return g_failures ? 1 : 0;
    }
  fprintf(stderr, "no check named '%s'\n", check.c_str());
  return 2;
}
