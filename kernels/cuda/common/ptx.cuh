// Instructions that CUDA C++ has no words for: asynchronous copies, matrix fragments, barriers in memory, TMA
// and WGMMA. One small function each, named after what it does. The build for emulation takes the twin of
// this file in tests/emulator, which runs what is asynchronous as late as its wait allows.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/tensor_map.h"

// Whether code of Hopper's own is compiled. Elsewhere it traps: the host does not launch such kernels there.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WT_HOPPER(...) __VA_ARGS__
#else
#define WT_HOPPER(...) __trap()
#endif

namespace warptape::kernels::cuda {

// The address within shared memory, as instructions and descriptors take it.
WT_DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// ---- cp.async (sm_80): from global to shared memory past the registers ----

// Bytes are 4, 8 or 16, and both addresses their multiples. Of them `read` are read, the rest becomes zero.
template <int Bytes>
WT_DEVICE void copy_async(void* shared, const void* global, int read = Bytes) {
  if constexpr (Bytes == 16)  // past L1
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(read)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(global),
                 "n"(Bytes), "r"(read)
                 : "memory");
}
// Closes the group of this thread's copies since the last one.
WT_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most N of this thread's groups are under way. Others' copies need a barrier after it.
template <int N>
WT_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- fragments of 16-bit types for a warp (sm_80) ----

// Four 8x8 matrices: lane 8 i + r gives the address of row r of matrix i; word i of each lane is row lane /
// 4, columns lane % 4 * 2 and the next of matrix i. Transposed, lanes get them of its transpose.
WT_DEVICE void load_matrices(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}
WT_DEVICE void load_matrices_transposed(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}

// D += A B by a warp, [16, 16] by [16, 8]. With g = lane / 4 and t = lane % 4, a lane holds
//   A: words of columns 2 t, 2 t + 1 of rows g, g + 8, then columns 8 further of the same rows
//   B: words of rows 2 t, 2 t + 1 and of rows 8 further, of column g
//   D: columns 2 t, 2 t + 1 of row g, then of row g + 8.
#define WT_MMA(type)                                                                  \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <class T>
WT_DEVICE void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>)
    WT_MMA("bf16");
  else
    WT_MMA("f16");
}
#undef WT_MMA

// The same of codes of 8 bits with a sign, [16, 32] by [32, 8], and integer sums: a word has 4 codes along k.
//   A: columns 4 t to 4 t + 3 of rows g, g + 8, then 16 columns further; B: rows 4 t .., then 16 further
WT_DEVICE void mma_16x8x32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The opposite of load_matrices (sm_90): lanes' words become rows in shared memory.
WT_DEVICE void store_matrices(void* row, const uint32_t (&words)[4]) {
  WT_HOPPER(asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory"));
}

// ---- barriers in shared memory (sm_90) ----

WT_DEVICE void init_barrier(uint64_t* barrier, int arrivals) {
  WT_HOPPER(asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                         "r"(arrivals) : "memory"));
}
// Makes what init_barrier wrote visible to TMA; __syncthreads() must follow for the other threads.
WT_DEVICE void publish_barriers() {
  WT_HOPPER(asm volatile("fence.mbarrier_init.release.cluster;" :: : "memory"));
}
WT_DEVICE void arrive(uint64_t* barrier) {
  WT_HOPPER(
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory"));
}
// Arrives, and lets the phase wait for so many bytes of TMA, too.
WT_DEVICE void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
  WT_HOPPER(
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                   "r"(bytes) : "memory"));
}
// Until the phase of that parity is over: the first one has parity 0, and the one before it counts as over.
WT_DEVICE void wait_barrier(uint64_t* barrier, uint32_t parity) {
  WT_HOPPER(uint32_t done = 0; while (!done) asm volatile(
                "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
                "p;\n}" : "=r"(done) : "r"(shared_address(barrier)),
                "r"(parity) : "memory"));
}

// ---- clusters (sm_90): blocks that run together and reach each other's shared memory ----

// The block's number in its cluster.
WT_DEVICE unsigned cluster_rank() {
  uint32_t rank = 0;
  WT_HOPPER(asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)));
  return rank;
}
// Until all threads of the cluster that have not ended are here. Before it nobody may reach into another
// block's memory, and behind the last one nobody may any longer, for the block may have ended.
WT_DEVICE void cluster_sync() {
  WT_HOPPER(asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" :: : "memory"));
}
// Arrives at the barrier that lies at the same place in block `rank`, which may be this one.
WT_DEVICE void arrive_at(uint64_t* barrier, unsigned rank) {
  WT_HOPPER(asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)),
      "r"(rank) : "memory"));
}
// wait_barrier() where threads of other blocks arrive.
WT_DEVICE void wait_cluster_barrier(uint64_t* barrier, uint32_t parity) {
  WT_HOPPER(uint32_t done = 0; while (!done) asm volatile(
                "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(shared_address(barrier)),
                "r"(parity) : "memory"));
}

// Makes what this thread wrote to shared memory visible to TMA and WGMMA; other threads need a barrier, too.
WT_DEVICE void publish_writes() { WT_HOPPER(asm volatile("fence.proxy.async.shared::cta;" :: : "memory")); }

// ---- TMA (sm_90): one thread asks for a box of a matrix ----

// The box of `map` whose first element is column x, row y, into shared memory; elements outside of the matrix
// become zero. Counts down the bytes that `barrier` expects.
WT_DEVICE void load_box(void* shared, const TensorMap* map, int x, int y, uint64_t* barrier) {
  WT_HOPPER(
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                   "{%2, %3}], [%4];" ::"r"(shared_address(shared)),
                   "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier)) : "memory"));
}
// The same of [B, H, T, D], a map of tensor_map_of_heads: column x, row y of head h of batch element b.
WT_DEVICE void load_box(void* shared, const TensorMap* map, int x, int y, int h, int b, uint64_t* barrier) {
  WT_HOPPER(
      asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                   "{%2, %3, %4, %5}], [%6];" ::"r"(shared_address(shared)),
                   "l"(map), "r"(x), "r"(y), "r"(h), "r"(b), "r"(shared_address(barrier)) : "memory"));
}
// The same of matrices behind each other, a map of tensor_map_of_matrices: of matrix z.
WT_DEVICE void load_box(void* shared, const TensorMap* map, int x, int y, int z, uint64_t* barrier) {
  WT_HOPPER(
      asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                   "{%2, %3, %4}], [%5];" ::"r"(shared_address(shared)),
                   "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)) : "memory"));
}
// The same to the same place of each block of the cluster whose bit is in `blocks`, where the barrier at that
// place counts the bytes: memory is read once for all.
WT_DEVICE void load_box_for_all(void* shared, const TensorMap* map, int x, int y, int z, uint64_t* barrier,
                                unsigned blocks) {
  WT_HOPPER(asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)), "h"(uint16_t(blocks)) : "memory"));
}
// The opposite: from shared memory, which was published, to where the box lies in the matrix; elements
// outside of it are left out. The thread's boxes since the last commit_boxes() are a group.
WT_DEVICE void store_box(const void* shared, const TensorMap* map, int x, int y) {
  WT_HOPPER(
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                   "r"(shared_address(shared)), "r"(x), "r"(y) : "memory"));
}
WT_DEVICE void store_box(const void* shared, const TensorMap* map, int x, int y, int z) {
  WT_HOPPER(asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z) : "memory"));
}
WT_DEVICE void commit_boxes() { WT_HOPPER(asm volatile("cp.async.bulk.commit_group;" :: : "memory")); }
// Until shared memory of all but the last N of this thread's groups was read. By the end of the kernel they
// are in memory.
template <int N>
WT_DEVICE void wait_boxes_read() {
  WT_HOPPER(asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"));
}
WT_DEVICE void prefetch_map(const TensorMap* map) {
  WT_HOPPER(asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"));
}

// ---- WGMMA (sm_90a): products of a warpgroup with operands in shared memory ----

// Where an operand lies, in rows of 128 bytes swizzled as TMA does: `leading` and `stride` are bytes from one
// group of rows to the next, as PTX's matrix descriptor has them.
WT_DEVICE uint64_t swizzled_operand(const void* p, uint32_t leading, uint32_t stride) {
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62;
  return kSwizzle128 | uint64_t(stride >> 4) << 32 | uint64_t(leading >> 4) << 16 |
         ((shared_address(p) & 0x3ffff) >> 4);
}
// Before the first product, and again after the sums were touched.
WT_DEVICE void fence_products() { WT_HOPPER(asm volatile("wgmma.fence.sync.aligned;" :: : "memory")); }
WT_DEVICE void commit_products() {
  WT_HOPPER(asm volatile("wgmma.commit_group.sync.aligned;" :: : "memory"));
}
template <int N>
WT_DEVICE void wait_products() {
  WT_HOPPER(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"));
}

#define WT_REGISTERS_0                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WT_REGISTERS_1                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WT_REGISTERS_2                                                               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WT_REGISTERS_3                                                                           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WT_SUMS8(i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define WT_SUMS32(i) WT_SUMS8(i), WT_SUMS8(i + 8), WT_SUMS8(i + 16), WT_SUMS8(i + 24)
#define WT_WGMMA(type)                                                                             \
  asm volatile("{\nwgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" WT_REGISTERS_0 \
               ", " WT_REGISTERS_1 ", " WT_REGISTERS_2 ", " WT_REGISTERS_3                         \
               "}, %128, %129, 1, 1, 1, %130, %131;\n}"                                            \
               : WT_SUMS32(0), WT_SUMS32(32), WT_SUMS32(64), WT_SUMS32(96)                         \
               : "l"(a), "l"(b), "n"(AAlongK ? 0 : 1), "n"(BAlongK ? 0 : 1))

// D += A B, [64, 16] by [16, 256]: memory runs along k in rows of A, in columns of B, where it says so, else
// along the other dim. Warp w of the group has rows 16 w to 16 w + 15 of D; a lane's sums 4 j to 4 j + 3 are
// those of mma_16x8x16 for columns 8 j on.
template <class T, bool AAlongK, bool BAlongK>
WT_DEVICE void multiply_async(float (&d)[128], uint64_t a, uint64_t b) {
  if constexpr (std::is_same_v<T, BFloat16>)
    WT_HOPPER(WT_WGMMA("bf16"));
  else
    WT_HOPPER(WT_WGMMA("f16"));
}
#undef WT_WGMMA
#undef WT_SUMS32
#undef WT_SUMS8

#define WT_SUMS4(how, i) how(d[i][0]), how(d[i][1]), how(d[i][2]), how(d[i][3])
#define WT_SUMS32(how, i)                                                                                   \
  WT_SUMS4(how, i), WT_SUMS4(how, i + 1), WT_SUMS4(how, i + 2), WT_SUMS4(how, i + 3), WT_SUMS4(how, i + 4), \
      WT_SUMS4(how, i + 5), WT_SUMS4(how, i + 6), WT_SUMS4(how, i + 7)
#define WT_BY_ROWS_64(type, add, how)                                                          \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" WT_REGISTERS_0 \
               "}, %32, %33, " add ", 1, 1, 0, 0;"                                             \
               : WT_SUMS32(how, 0)                                                             \
               : "l"(a), "l"(b))
#define WT_BY_ROWS_128(type, add, how)                                                          \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" WT_REGISTERS_0 \
               ", " WT_REGISTERS_1 "}, %64, %65, " add ", 1, 1, 0, 0;"                          \
               : WT_SUMS32(how, 0), WT_SUMS32(how, 8)                                           \
               : "l"(a), "l"(b))
#define WT_BY_ROWS(type)                          \
  do {                                            \
    if constexpr (Eights == 8 && Add)             \
      WT_HOPPER(WT_BY_ROWS_64(type, "1", "+f"));  \
    else if constexpr (Eights == 8)               \
      WT_HOPPER(WT_BY_ROWS_64(type, "0", "=f"));  \
    else if constexpr (Add)                       \
      WT_HOPPER(WT_BY_ROWS_128(type, "1", "+f")); \
    else                                          \
      WT_HOPPER(WT_BY_ROWS_128(type, "0", "=f")); \
  } while (false)

// D += A B^T, or D = A B^T: [64, 16] by [N, 16], both by rows; N is 64 or 128. d[j] are a lane's sums 4 j on.
template <class T, bool Add, int Eights>
WT_DEVICE void multiply_rows_async(float (&d)[Eights][4], uint64_t a, uint64_t b) {
  static_assert(Eights == 8 || Eights == 16);
  if constexpr (std::is_same_v<T, BFloat16>)
    WT_BY_ROWS("bf16");
  else
    WT_BY_ROWS("f16");
}
#undef WT_BY_ROWS
#undef WT_BY_ROWS_64
#undef WT_BY_ROWS_128

#define WT_BY_COLUMNS_64(type)                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" WT_REGISTERS_0 \
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                     \
               : WT_SUMS32("+f", 0)                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WT_BY_COLUMNS_128(type)                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" WT_REGISTERS_0 \
               ", " WT_REGISTERS_1 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                  \
               : WT_SUMS32("+f", 0), WT_SUMS32("+f", 8)                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// D += A B, [64, 16] by [16, N]: A in registers as mma_16x8x16 has it for the warp's 16 rows, B with its
// columns next to each other; N is 64 or 128. The words of A are read until wait_products().
template <class T, int Eights>
WT_DEVICE void add_product_async(float (&d)[Eights][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(Eights == 8 || Eights == 16);
  if constexpr (Eights == 8 && std::is_same_v<T, BFloat16>)
    WT_HOPPER(WT_BY_COLUMNS_64("bf16"));
  else if constexpr (Eights == 8)
    WT_HOPPER(WT_BY_COLUMNS_64("f16"));
  else if constexpr (std::is_same_v<T, BFloat16>)
    WT_HOPPER(WT_BY_COLUMNS_128("bf16"));
  else
    WT_HOPPER(WT_BY_COLUMNS_128("f16"));
}
#undef WT_BY_COLUMNS_64
#undef WT_BY_COLUMNS_128
#undef WT_SUMS32
#undef WT_SUMS4
#undef WT_REGISTERS_0
#undef WT_REGISTERS_1
#undef WT_REGISTERS_2
#undef WT_REGISTERS_3

// 2^x in one instruction, to 2 units in the last place; below 2^-126 it is 0.
WT_DEVICE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x in one instruction, to 1 unit in the last place; of numbers above 2^126 it is 0.
WT_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What makes these numbers stays before this place, and what uses them behind it: the compiler may not move
// work that is to run beside a product behind the wait for it.
template <int N>
WT_DEVICE void keep_in_place(float (&d)[N][4]) {
#pragma unroll
  for (auto& four : d)
    asm volatile("" : "+f"(four[0]), "+f"(four[1]), "+f"(four[2]), "+f"(four[3])::"memory");
}

// The compiler may not know the number from here on: what is made of it in a loop is made each time, and
// keeps no registers from one time to the next.
WT_DEVICE void forget(int& x) { asm volatile("" : "+r"(x)); }
// What is loaded behind this place is not loaded before it.
WT_DEVICE void forget_memory() { asm volatile("" ::: "memory"); }

// Registers move from warps that need few to those that need many; every warp of a warpgroup calls.
template <int N>
WT_DEVICE void give_registers() {
  WT_HOPPER(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)));
}
template <int N>
WT_DEVICE void take_registers() {
  WT_HOPPER(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)));
}

}  // namespace warptape::kernels::cuda
#undef WT_HOPPER
