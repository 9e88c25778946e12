// What the emulated device does asynchronously or by a whole warp: cp.async, ldmatrix, mma, mbarriers, TMA,
// WGMMA.
//
// Note [Late effects]
// A copy or a product takes effect where the program waits for it, and no earlier: cp.async at
// cp.async.wait_group of its thread, TMA at a wait on its barrier, WGMMA at wgmma.wait_group of its warp. So
// a missing wait leaves old data, which is NaN at first. With WARPTAPE_EMULATOR_ORDER=shuffled half of the
// copies take effect at once instead, so that one that is asked for before its target was read shows, too.
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
void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bfloat16);
void mma_16x8x32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

void init_barrier(uint64_t* barrier, int arrivals);
void arrive(uint64_t* barrier, uint32_t bytes);
void wait_barrier(uint64_t* barrier, uint32_t parity);

// A row-major matrix of 2-byte elements, its boxes swizzled by 128 bytes.
struct TensorMap {
  const char* data;
  int64_t rows, cols;
  int box_rows, box_cols;
};
void load_box(void* shared, const TensorMap& map, int x, int y, uint64_t* barrier);

void fence_products();
void commit_products();
void wait_products(int left);
void multiply_async(float (&d)[128], uint64_t a, uint64_t b, bool bfloat16);

// bfloat16 or float16 at p.
float half_at(const void* p, bool bfloat16);

// For fibers.cpp: a block begins, and ends.
void begin_block(unsigned threads);
void end_block();

}  // namespace emulator
