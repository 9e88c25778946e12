// Asynchronous copies, barriers in memory, and tensor cores of the emulated device. See Note [Late effects].
#include "asynchronous.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "clusters.h"
#include "internal.h"
#include "races.h"
#include "traffic.h"

namespace emulator {
namespace {

struct Copy {
  char* to;
  const char* from;
  int bytes, read;
};
// Groups of a thread: [0 .. marks[0]) of `items`, [marks[0] .. marks[1]), ..., and the open one.
template <class Item>
struct Groups {
  std::vector<Item> items;
  std::vector<size_t> marks;
  void commit() { marks.push_back(items.size()); }
  // How many items are waited for so that `left` groups remain.
  size_t due(size_t left) const { return marks.size() <= left ? 0 : marks[marks.size() - left - 1]; }
  void drop(size_t left) {
    if (marks.size() <= left) return;
    const size_t n = due(left);
    items.erase(items.begin(), items.begin() + static_cast<ptrdiff_t>(n));
    marks.erase(marks.begin(), marks.end() - static_cast<ptrdiff_t>(left));
    for (size_t& m : marks) m -= n;
  }
};
struct Box {
  char* shared;
  TensorMap map;
  int at[4];
  uint64_t* barrier;
  unsigned rank;  // of the block in its cluster whose memory it comes to
};
struct Thread {
  Groups<Copy> copies;
  Groups<Box> boxes;  // on their way to memory
  Groups<Product> products;
  bool fenced = false;
};
std::vector<Thread> g_threads;
std::vector<Box> g_boxes;  // of all blocks of the cluster
bool g_used = false;
std::map<unsigned, std::vector<Thread>> g_suspended;  // threads of the cluster's other blocks

Thread& self() {
  g_used = true;
  return g_threads[thread_of_block()];
}
bool early() { return order() == Order::Shuffled && random_bits() % 2; }

void check_aligned(const char* what, const void* p, size_t to) {
  if (reinterpret_cast<uintptr_t>(p) % to) die("%s: %p is not aligned to %zu", what, p, to);
}
// The 16-byte pieces of each row of 128 bytes are exchanged by the row's number.
uint32_t swizzled(uint32_t address) { return address ^ (address >> 3 & 0x70); }
char* at_shared(uint32_t address) { return shared_window() + address; }

void run_copy(const Copy& c) {
  races_access(c.from, static_cast<size_t>(c.read), false);
  races_access(c.to, static_cast<size_t>(c.bytes), true);
  memcpy(c.to, c.from, static_cast<size_t>(c.read));
  memset(c.to + c.read, 0, static_cast<size_t>(c.bytes - c.read));
}

// ---- barriers in memory ----
struct State {
  uint32_t parity : 1, arrivals : 15, pending : 16;
  int32_t bytes;
};
State read(const uint64_t* barrier) {
  State s;
  memcpy(&s, barrier, sizeof s);
  if (s.arrivals == 0x7fff) die("a barrier in shared memory is used before mbarrier.init");
  return s;
}
void write(uint64_t* barrier, State s) {
  if (s.pending == 0 && s.bytes == 0) s.parity ^= 1, s.pending = s.arrivals;
  memcpy(barrier, &s, sizeof s);
}

// Calls move(shared, global) for each element of the box; global is null outside of the matrix.
template <class Move>
void for_elements(const Box& b, Move&& move) {
  const uint32_t base = shared_address(b.shared);
  for (int r = 0; r < b.map.box_rows; ++r)
    for (int c = 0; c < b.map.box_cols; ++c) {
      const int64_t at[4] = {int64_t(b.at[0]) + c, int64_t(b.at[1]) + r, b.at[2], b.at[3]};
      char* global = b.map.data;
      bool inside = true;
      for (int d = 0; d < 4; ++d) {
        inside = inside && at[d] >= 0 && at[d] < b.map.sizes[d];
        global += at[d] * b.map.strides[d];
      }
      move(in_block(b.rank, at_shared(swizzled(base + uint32_t(r * b.map.box_cols + c) * 2))),
           inside ? global : nullptr);
    }
}
void run_box(const Box& b) {
  for_elements(b, [](char* shared, const char* global) {
    memset(shared, 0, 2);
    if (global) memcpy(shared, global, 2);
  });
  auto* barrier = reinterpret_cast<uint64_t*>(in_block(b.rank, b.barrier));
  State s = read(barrier);
  s.bytes -= b.map.box_rows * b.map.box_cols * 2;
  write(barrier, s);
}

void run_store(const Box& b) {
  for_elements(b, [](const char* shared, char* global) {
    races_access(shared, 2, false);
    if (!global) return;
    races_access(global, 2, true);
    memcpy(global, shared, 2);
  });
}

struct BarrierWait {
  uint64_t* barrier;
  uint32_t parity;
};
bool is_over(void* state) {
  const auto& w = *static_cast<const BarrierWait*>(state);
  for (size_t i = 0; i < g_boxes.size();)
    if (g_boxes[i].barrier == w.barrier && g_boxes[i].rank == cluster_rank()) {
      const Box box = g_boxes[i];
      g_boxes.erase(g_boxes.begin() + static_cast<ptrdiff_t>(i));
      run_box(box);
    } else {
      ++i;
    }
  return read(w.barrier).parity != w.parity;
}

// ---- fragments ----
float low(uint32_t word, bool bfloat16) { return half_at(&word, bfloat16); }
float high(uint32_t word, bool bfloat16) { return half_at(reinterpret_cast<char*>(&word) + 2, bfloat16); }

struct MatricesCall {
  uint32_t* words;
  const char* row;
  bool transposed;
};
void run_matrices(void* const* lanes) {
  auto at = [&](int l) -> const MatricesCall& { return *static_cast<const MatricesCall*>(lanes[l]); };
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i)
      for (int e = 0; e < 2; ++e) {
        const int pair = l % 4 * 2 + e, other = l / 4;
        const int row = at(l).transposed ? pair : other, col = at(l).transposed ? other : pair;
        memcpy(reinterpret_cast<char*>(at(l).words + i) + 2 * e, at(8 * i + row).row + 2 * col, 2);
      }
}

struct RowsCall {
  char* row;
  const uint32_t* words;
};
void run_rows(void* const* lanes) {
  auto at = [&](int l) -> const RowsCall& { return *static_cast<const RowsCall*>(lanes[l]); };
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) memcpy(at(8 * i + l / 4).row + l % 4 * 4, at(l).words + i, 4);
}

struct MmaCall {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
  bool bfloat16;
};
void run_mma(void* const* lanes) {
  float a[16][16], b[16][8];
  for (int l = 0; l < 32; ++l) {
    const MmaCall& c = *static_cast<const MmaCall*>(lanes[l]);
    const int g = l / 4, t = l % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      a[g + i % 2 * 8][t + i / 2 * 8] = low(c.a[i], c.bfloat16);
      a[g + i % 2 * 8][t + i / 2 * 8 + 1] = high(c.a[i], c.bfloat16);
    }
    for (int i = 0; i < 2; ++i)
      b[t + i * 8][g] = low(c.b[i], c.bfloat16), b[t + i * 8 + 1][g] = high(c.b[i], c.bfloat16);
  }
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) {
      float& sum = static_cast<const MmaCall*>(lanes[l])->d[i];
      for (int k = 0; k < 16; ++k) sum += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
    }
}

struct CodesCall {
  int* d;
  const uint32_t* a;
  uint32_t b[2];
};
void run_codes(void* const* lanes) {
  auto code = [](uint32_t word, int i) { return int(static_cast<int8_t>(word >> 8 * i)); };
  int a[16][32], b[32][8];
  for (int l = 0; l < 32; ++l) {
    const CodesCall& c = *static_cast<const CodesCall*>(lanes[l]);
    const int g = l / 4, t = l % 4 * 4;
    for (int k = 0; k < 4; ++k) {
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 16 + k] = code(c.a[i], k);
      for (int i = 0; i < 2; ++i) b[t + i * 16 + k][g] = code(c.b[i], k);
    }
  }
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) {
      int& sum = static_cast<const CodesCall*>(lanes[l])->d[i];
      for (int k = 0; k < 32; ++k) sum += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
    }
}

// ---- products of a warpgroup, each thread's sums by itself ----
struct Operand {
  uint32_t start, leading, stride;
  explicit Operand(uint64_t d)
      : start(uint32_t(d & 0x3fff) << 4),
        leading(uint32_t(d >> 16 & 0x3fff) << 4),
        stride(uint32_t(d >> 32 & 0x3fff) << 4) {
    if (d >> 62 != 1) die("wgmma: the emulator knows rows of 128 bytes with their swizzle alone");
  }
  // Rows along k (A), or along the columns (B).
  char* by_k(int r, int k) const {
    return at_shared(swizzled(start + uint32_t(r / 8) * stride + uint32_t(r % 8 * 128 + k * 2)));
  }
  char* by_column(int n, int k) const {
    return at_shared(swizzled(start + uint32_t(n / 64) * leading + uint32_t(k / 8) * stride +
                              uint32_t(k % 8 * 128 + n % 64 * 2)));
  }
};
// Element k of A's row `row`, the i-th of a thread's two: from shared memory, or from the words of the four
// lanes that hold the row.
float left_at(const Product& p, size_t number, unsigned thread, int row, int i, int k) {
  if (!p.words) {
    const Operand a(p.a);
    return half_at(p.left_by_rows ? a.by_k(row + 8 * i, k) : a.by_column(row + 8 * i, k), p.bfloat16);
  }
  const Product& holder = g_threads[thread / 4 * 4 + unsigned(k) % 8 / 2].products.items[number];
  const uint32_t word = holder.words[i + k / 8 * 2];
  return k % 2 ? high(word, p.bfloat16) : low(word, p.bfloat16);
}
void run_product(unsigned thread, size_t number) {
  const Product& p = g_threads[thread].products.items[number];
  const Operand b(p.b);
  const int lane = static_cast<int>(thread % 32), row = static_cast<int>(thread / 32 % 4) * 16 + lane / 4;
  float left[2][16];
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 16; ++k) left[i][k] = left_at(p, number, thread, row, i, k);
  for (int j = 0; j < p.n / 4; ++j) {
    const int column = j / 2 * 8 + lane % 4 * 2 + j % 2;
    float& first = p.sums[j / 2 * 4 + j % 2];
    float& second = p.sums[j / 2 * 4 + 2 + j % 2];
    if (!p.add) first = second = 0;
    for (int k = 0; k < 16; ++k) {
      const float right = half_at(p.transposed ? b.by_k(column, k) : b.by_column(column, k), p.bfloat16);
      first += left[0][k] * right, second += left[1][k] * right;
    }
  }
}
struct ProductsWait {
  unsigned thread;
  size_t left;
};
void run_products(void* const* lanes) {
  auto at = [&](int l) -> const ProductsWait& { return *static_cast<const ProductsWait*>(lanes[l]); };
  const size_t n = g_threads[at(0).thread].products.due(at(0).left);
  for (size_t i = 0; i < n; ++i)
    for (int l = 0; l < 32; ++l) run_product(at(l).thread, i);
  for (int l = 0; l < 32; ++l) g_threads[at(l).thread].products.drop(at(l).left);
}

}  // namespace

uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - shared_window());
}

float half_at(const void* p, bool bfloat16) {
  uint16_t bits;
  memcpy(&bits, p, 2);
  if (bfloat16) return std::bit_cast<float>(uint32_t(bits) << 16);
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

void begin_block(unsigned threads) {
  if (!g_used && g_threads.size() >= threads) return;
  g_threads.assign(threads, Thread{});
  g_used = false;
}
void exchange_block(unsigned from, unsigned to) {
  g_suspended[from] = std::move(g_threads);
  g_threads = std::move(g_suspended[to]);
}
void end_block() {
  for (const Thread& t : g_threads)
    if (g_used && !t.boxes.items.empty()) die("the block ends while TMA still reads its shared memory");
  for (const Box& box : g_boxes)
    if (box.rank == cluster_rank()) die("the block ends while TMA still writes to its shared memory");
}

void copy_async(void* shared, const void* global, int bytes, int read) {
  check_aligned("cp.async", shared, static_cast<size_t>(bytes));
  check_aligned("cp.async", global, static_cast<size_t>(bytes));
  if (read < 0 || read > bytes) die("cp.async reads %d of %d bytes", read, bytes);
  const auto* caller = static_cast<const char*>(__builtin_return_address(0));
  traffic_access(caller, global, static_cast<size_t>(read), false);
  traffic_access(caller + 1, shared, static_cast<size_t>(bytes), true);
  const Copy copy{static_cast<char*>(shared), static_cast<const char*>(global), bytes, read};
  if (early()) return run_copy(copy);
  self().copies.items.push_back(copy);
}
void commit_copies() { self().copies.commit(); }
void wait_copies(int left) {
  auto& copies = self().copies;
  const size_t n = copies.due(static_cast<size_t>(left));
  for (size_t i = 0; i < n; ++i) run_copy(copies.items[i]);
  copies.drop(static_cast<size_t>(left));
}

void load_matrices(uint32_t (&words)[4], const void* row, bool transposed) {
  check_aligned("ldmatrix", row, 16);
  races_access(row, 16, false);
  traffic_access(__builtin_return_address(0), row, 16, false);
  MatricesCall call{words, static_cast<const char*>(row), transposed};
  call_warp(run_matrices, &call);
}
void store_matrices(void* row, const uint32_t (&words)[4]) {
  check_aligned("stmatrix", row, 16);
  races_access(row, 16, true);
  RowsCall call{static_cast<char*>(row), words};
  call_warp(run_rows, &call);
}
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bfloat16) {
  MmaCall call{d, a, {b0, b1}, bfloat16};
  call_warp(run_mma, &call);
}

void mma_16x8x32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  CodesCall call{d, a, {b0, b1}};
  call_warp(run_codes, &call);
}

void init_barrier(uint64_t* barrier, int arrivals) {
  const State s{0, uint32_t(arrivals) & 0x7fff, uint32_t(arrivals) & 0xffff, 0};
  memcpy(barrier, &s, sizeof s);
}
void arrive(uint64_t* barrier, uint32_t bytes) {
  State s = read(barrier);
  if (s.pending == 0) die("more arrivals at a barrier in shared memory than it was made for");
  s.bytes += static_cast<int32_t>(bytes), --s.pending;
  write(barrier, s);
}
void arrive_at(uint64_t* barrier, unsigned rank) {
  arrive(reinterpret_cast<uint64_t*>(in_block(rank, barrier)), 0);
}
void wait_barrier(uint64_t* barrier, uint32_t parity) {
  BarrierWait wait{barrier, parity & 1};
  wait_until(is_over, &wait);
}

namespace {
void load_box_into(unsigned rank, void* shared, const TensorMap& map, const int (&at)[4], uint64_t* barrier) {
  check_aligned("TMA", shared, 128);
  g_used = true;
  const Box box{static_cast<char*>(shared), map, {at[0], at[1], at[2], at[3]}, barrier, rank};
  in_block(rank, shared);  // which must be there
  if (early()) return run_box(box);
  g_boxes.push_back(box);
}
}  // namespace

void load_box(void* shared, const TensorMap& map, int x, int y, int z, int w, uint64_t* barrier) {
  load_box_into(cluster_rank(), shared, map, {x, y, z, w}, barrier);
}
void load_box_for_all(void* shared, const TensorMap& map, int x, int y, int z, uint64_t* barrier,
                      unsigned blocks) {
  for (unsigned rank = 0; blocks >> rank; ++rank)
    if (blocks >> rank & 1) load_box_into(rank, shared, map, {x, y, z, 0}, barrier);
}
void store_box(const void* shared, const TensorMap& map, int x, int y, int z) {
  check_aligned("TMA", shared, 128);
  const Box box{static_cast<char*>(const_cast<void*>(shared)), map, {x, y, z, 0}, nullptr, cluster_rank()};
  if (early()) return run_store(box);
  self().boxes.items.push_back(box);
}
void commit_boxes() { self().boxes.commit(); }
void wait_boxes_read(int left) {
  auto& boxes = self().boxes;
  const size_t n = boxes.due(static_cast<size_t>(left));
  for (size_t i = 0; i < n; ++i) run_store(boxes.items[i]);
  boxes.drop(static_cast<size_t>(left));
}

void fence_products() { self().fenced = true; }
void multiply_async(const Product& product) {
  if (!self().fenced) die("wgmma.mma_async without wgmma.fence since the sums were last waited for");
  self().products.items.push_back(product);
}
void commit_products() { self().products.commit(); }
void wait_products(int left) {
  self().fenced = false;
  ProductsWait wait{thread_of_block(), static_cast<size_t>(left)};
  call_warp(run_products, &wait);
}

}  // namespace emulator
