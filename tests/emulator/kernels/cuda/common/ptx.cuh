// The emulator's twin of kernels/cuda/common/ptx.cuh: the same functions, run on the host. What they promise
// is said there; what is asynchronous takes effect at its wait (see asynchronous.h).
#pragma once

#include "asynchronous.h"
#include "clusters.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/tensor_map.h"

namespace warptape::kernels::cuda {

WT_DEVICE uint32_t shared_address(const void* p) { return emulator::shared_address(p); }

template <int Bytes>
WT_DEVICE void copy_async(void* shared, const void* global, int read = Bytes) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
  emulator::copy_async(shared, global, Bytes, read);
}
WT_DEVICE void commit_copies() { emulator::commit_copies(); }
template <int N>
WT_DEVICE void wait_copies() {
  emulator::wait_copies(N);
}

WT_DEVICE void load_matrices(uint32_t (&words)[4], const void* row) {
  emulator::load_matrices(words, row, false);
}
WT_DEVICE void load_matrices_transposed(uint32_t (&words)[4], const void* row) {
  emulator::load_matrices(words, row, true);
}
WT_DEVICE void store_matrices(void* row, const uint32_t (&words)[4]) { emulator::store_matrices(row, words); }
template <class T>
WT_DEVICE void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::mma_16x8x16(d, a, b0, b1, std::is_same_v<T, BFloat16>);
}

WT_DEVICE void mma_16x8x32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::mma_16x8x32(d, a, b0, b1);
}

WT_DEVICE void init_barrier(uint64_t* barrier, int arrivals) { emulator::init_barrier(barrier, arrivals); }
WT_DEVICE void publish_barriers() {}
WT_DEVICE void arrive(uint64_t* barrier) { emulator::arrive(barrier, 0); }
WT_DEVICE void arrive_and_expect(uint64_t* barrier, uint32_t bytes) { emulator::arrive(barrier, bytes); }
WT_DEVICE void wait_barrier(uint64_t* barrier, uint32_t parity) { emulator::wait_barrier(barrier, parity); }
WT_DEVICE unsigned cluster_rank() { return emulator::cluster_rank(); }
WT_DEVICE void cluster_sync() { emulator::cluster_sync(); }
WT_DEVICE void arrive_at(uint64_t* barrier, unsigned rank) { emulator::arrive_at(barrier, rank); }
WT_DEVICE void wait_cluster_barrier(uint64_t* barrier, uint32_t parity) {
  emulator::wait_barrier(barrier, parity);
}
WT_DEVICE void publish_writes() {}

WT_DEVICE void load_box(void* shared, const TensorMap* map, int x, int y, uint64_t* barrier) {
  emulator::load_box(shared, *map, x, y, 0, 0, barrier);
}
WT_DEVICE void load_box(void* shared, const TensorMap* map, int x, int y, int z, uint64_t* barrier) {
  emulator::load_box(shared, *map, x, y, z, 0, barrier);
}
WT_DEVICE void load_box(void* shared, const TensorMap* map, int x, int y, int h, int b, uint64_t* barrier) {
  emulator::load_box(shared, *map, x, y, h, b, barrier);
}
WT_DEVICE void load_box_for_all(void* shared, const TensorMap* map, int x, int y, int z, uint64_t* barrier,
                                unsigned blocks) {
  emulator::load_box_for_all(shared, *map, x, y, z, barrier, blocks);
}
WT_DEVICE void store_box(const void* shared, const TensorMap* map, int x, int y) {
  emulator::store_box(shared, *map, x, y, 0);
}
WT_DEVICE void store_box(const void* shared, const TensorMap* map, int x, int y, int z) {
  emulator::store_box(shared, *map, x, y, z);
}
WT_DEVICE void commit_boxes() { emulator::commit_boxes(); }
template <int N>
WT_DEVICE void wait_boxes_read() {
  emulator::wait_boxes_read(N);
}
WT_DEVICE void prefetch_map(const TensorMap*) {}

WT_DEVICE uint64_t swizzled_operand(const void* p, uint32_t leading, uint32_t stride) {
  return uint64_t(1) << 62 | uint64_t(stride >> 4) << 32 | uint64_t(leading >> 4) << 16 |
         shared_address(p) >> 4;
}
WT_DEVICE void fence_products() { emulator::fence_products(); }
WT_DEVICE void commit_products() { emulator::commit_products(); }
template <int N>
WT_DEVICE void wait_products() {
  emulator::wait_products(N);
}
template <class T, bool AAlongK, bool BAlongK>
WT_DEVICE void multiply_async(float (&d)[128], uint64_t a, uint64_t b) {
  emulator::multiply_async({d, nullptr, a, b, 256, BAlongK, true, std::is_same_v<T, BFloat16>, AAlongK});
}
template <class T, bool Add, int Eights>
WT_DEVICE void multiply_rows_async(float (&d)[Eights][4], uint64_t a, uint64_t b) {
  static_assert(Eights == 8 || Eights == 16);
  emulator::multiply_async({&d[0][0], nullptr, a, b, 8 * Eights, true, Add, std::is_same_v<T, BFloat16>});
}
template <class T, int Eights>
WT_DEVICE void add_product_async(float (&d)[Eights][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(Eights == 8 || Eights == 16);
  emulator::multiply_async({&d[0][0], a, 0, b, 8 * Eights, false, true, std::is_same_v<T, BFloat16>});
}

WT_DEVICE float power_of_two(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}

WT_DEVICE float reciprocal(float x) {
  const float y = 1 / x;
  return fabsf(y) < 0x1p-126f ? copysignf(0.0f, y) : y;
}

template <int N>
WT_DEVICE void keep_in_place(float (&)[N][4]) {}

WT_DEVICE void forget(int&) {}
WT_DEVICE void forget_memory() {}

template <int N>
WT_DEVICE void give_registers() {
  static_assert(N % 8 == 0 && N >= 24);
}
template <int N>
WT_DEVICE void take_registers() {
  static_assert(N % 8 == 0 && N <= 256);
}

}  // namespace warptape::kernels::cuda
