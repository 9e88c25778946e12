// What the emulated device does asynchronously or by a whole warp: cp.async, ldmatrix, mma, mbarriers, TMA,
// WGMMA.
//
// Note [Late effects]
// A copy or a product takes effect where the program waits for it, and no earlier: cp.async at
// cp.async.wait_group of its thread, TMA at a wait on its barrier or, to memory, for its group, WGMMA at
// wgmma.wait_group of its warp. So a missing wait leaves old data, which is NaN at first. With
// WARPTAPE_EMULATOR_ORDER=shuffled half of the copies take effect at once instead, so that one that is asked
// for before its target was read shows, too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

// Shared memory's address, from the start of the window that dynamic shared memory lies at the end of.
uint32_t shared_address(const void* p);

void copy_async(void* shared, const void* global, int bytes, int read);
void commit_copies();
void wait_copies(int left);

void load_matrices(uint32_t (&words)[4], const void* row, bool transposed);
void store_matrices(void* row, const uint32_t (&words)[4]);
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bfloat16);
void mma_16x8x32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

void init_barrier(uint64_t* barrier, int arrivals);
void arrive(uint64_t* barrier, uint32_t bytes);
void arrive_at(uint64_t* barrier, unsigned rank);  // of block `rank` of the cluster
void wait_barrier(uint64_t* barrier, uint32_t parity);

// Matrices of 2-byte elements, in two further dims; the innermost dim first, strides in bytes. Boxes are of
// one matrix and swizzled by 128 bytes.
struct TensorMap {
  char* data;
  int64_t sizes[4], strides[4];
  int box_rows, box_cols;
};
void load_box(void* shared, const TensorMap& map, int x, int y, int z, int w, uint64_t* barrier);
// The same for each block of the cluster whose bit is in `blocks`.
void load_box_for_all(void* shared, const TensorMap& map, int x, int y, int z, uint64_t* barrier,
                      unsigned blocks);
void store_box(const void* shared, const TensorMap& map, int x, int y, int z);
void commit_boxes();
void wait_boxes_read(int left);

void fence_products();
void commit_products();
void wait_products(int left);
// A wgmma of [64, 16] by [16, n] into a thread's n / 2 sums. `words` is A in registers, read at the wait:
// null where it lies in shared memory at `a`. B at `b` lies by rows of its transpose, or with columns next to
// each other.
struct Product {
  float* sums;
  const uint32_t* words;
  uint64_t a, b;
  int n;
  bool transposed, add, bfloat16;
  bool left_by_rows = true;  // else A in shared memory lies by rows of its transpose
};
void multiply_async(const Product& product);

// bfloat16 or float16 at p.
float half_at(const void* p, bool bfloat16);

// For fibers.cpp: a block begins, and ends; one of a cluster goes on in place of another.
void begin_block(unsigned threads);
void end_block();
void exchange_block(unsigned from, unsigned to);

}  // namespace emulator
