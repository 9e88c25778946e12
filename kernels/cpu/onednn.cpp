// Glue to oneDNN's C interface. Each thread keeps its primitives by shape: executing one then needs no lock,
// and making one that another thread made before is cheap, for the library shares the generated code.
#include "kernels/cpu/onednn.h"

#include <cpuid.h>
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>

namespace warptape::kernels::cpu {
namespace {

// clang-format off: a list that the formatter moves anew each time
#define WT_DNNL_FUNCTIONS(F)                                                                  \
  F(dnnl_engine_create)                                                                       \
  F(dnnl_stream_create) F(dnnl_stream_destroy)                                                \
  F(dnnl_memory_desc_create_with_strides)                                                     \
  F(dnnl_memory_desc_destroy)                                                                 \
  F(dnnl_memory_create) F(dnnl_memory_destroy) F(dnnl_memory_set_data_handle)                 \
      F(dnnl_matmul_primitive_desc_create) F(dnnl_primitive_create) F(dnnl_primitive_destroy) \
          F(dnnl_primitive_desc_destroy) F(dnnl_primitive_execute)
// clang-format on

std::atomic<bool> ended{false};  // the process: the library may be gone

// The library's functions; all null when it is not there.
struct Library {
#define WT_DNNL_MEMBER(name) decltype(&::name) name = nullptr;
  WT_DNNL_FUNCTIONS(WT_DNNL_MEMBER)
#undef WT_DNNL_MEMBER
  int (*omp_get_max_threads)() = nullptr;
  void (*omp_set_num_threads)(int) = nullptr;
  dnnl_engine_t engine = nullptr;
  bool loaded = false;

  Library() {
    void* handle = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!handle) return;
    bool all = true;
    auto find = [&](auto& to, const char* name) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(handle, name));
      all &= to != nullptr;
    };
#define WT_DNNL_FIND(name) find(name, #name);
    WT_DNNL_FUNCTIONS(WT_DNNL_FIND)
#undef WT_DNNL_FIND
    find(omp_get_max_threads, "omp_get_max_threads");
    find(omp_set_num_threads, "omp_set_num_threads");
    loaded = all && dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success;
  }
  ~Library() { ended = true; }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
};

const Library& library() {
  static const Library lib;
  return lib;
}

// The library cuts its work for its own threads when a primitive is made and run; here it is to use the
// caller's alone.
class SingleThread {
 public:
  SingleThread() : before_(library().omp_get_max_threads()) {
    if (before_ != 1) library().omp_set_num_threads(1);
  }
  ~SingleThread() {
    if (before_ != 1) library().omp_set_num_threads(before_);
  }

 private:
  int before_;
};

// A primitive with its operands: source, weights, bias, destination.
struct Matmul {
  static constexpr int kArgs[4] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST};
  dnnl_memory_desc_t descs[4] = {};
  dnnl_memory_t memories[4] = {};
  dnnl_primitive_t primitive = nullptr;

  explicit Matmul(const OneDnnMatmul& s) {
    const Library& lib = library();
    auto describe = [&](int i, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
      dnnl_dims_t dims = {rows, cols}, strides = {row_stride, col_stride};
      return lib.dnnl_memory_desc_create_with_strides(&descs[i], 2, dims, dnnl_bf16, strides) == dnnl_success;
    };
    bool ok = describe(0, s.m, s.k, s.a_row, s.a_col) && describe(1, s.k, s.n, s.b_row, s.b_col) &&
              describe(3, s.m, s.n, s.c_row, 1) && (!s.has_bias || describe(2, 1, s.n, s.n, 1));
    for (int i = 0; ok && i < 4; ++i)
      ok = !descs[i] ||
           lib.dnnl_memory_create(&memories[i], descs[i], lib.engine, DNNL_MEMORY_NONE) == dnnl_success;
    dnnl_primitive_desc_t desc = nullptr;
    ok = ok && lib.dnnl_matmul_primitive_desc_create(&desc, lib.engine, descs[0], descs[1], descs[2],
                                                     descs[3], nullptr) == dnnl_success;
    if (ok && lib.dnnl_primitive_create(&primitive, desc) != dnnl_success) primitive = nullptr;
    if (desc) lib.dnnl_primitive_desc_destroy(desc);
  }
  ~Matmul() {
    const Library& lib = library();
    if (primitive) lib.dnnl_primitive_destroy(primitive);
    for (int i = 0; i < 4; ++i) {
      if (memories[i]) lib.dnnl_memory_destroy(memories[i]);
      if (descs[i]) lib.dnnl_memory_desc_destroy(descs[i]);
    }
  }
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  bool run(dnnl_stream_t stream, const void* const (&data)[4]) const {
    dnnl_exec_arg_t args[4];
    int count = 0;
    for (int i = 0; i < 4; ++i) {
      if (!memories[i]) continue;
      library().dnnl_memory_set_data_handle(memories[i], const_cast<void*>(data[i]));
      args[count++] = {kArgs[i], memories[i]};
    }
    return library().dnnl_primitive_execute(primitive, stream, count, args) == dnnl_success;
  }
};

struct Hash {
  size_t operator()(const OneDnnMatmul& s) const {
    size_t h = s.has_bias;
    for (int64_t v : {s.m, s.n, s.k, s.a_row, s.a_col, s.b_row, s.b_col, s.c_row})
      h = (h ^ size_t(v)) * 0x9e3779b97f4a7c15ull + (h >> 29);
    return h;
  }
};
struct Equal {
  bool operator()(const OneDnnMatmul& x, const OneDnnMatmul& y) const {
    return x.m == y.m && x.n == y.n && x.k == y.k && x.a_row == y.a_row && x.a_col == y.a_col &&
           x.b_row == y.b_row && x.b_col == y.b_col && x.c_row == y.c_row && x.has_bias == y.has_bias;
  }
};

struct ThreadCache {
  static constexpr size_t kMost = 512;  // shapes; then all are forgotten
  using Matmuls = std::unordered_map<OneDnnMatmul, Matmul, Hash, Equal>;
  std::unique_ptr<Matmuls> matmuls = std::make_unique<Matmuls>();
  dnnl_stream_t stream = nullptr;

  ThreadCache() = default;
  ~ThreadCache() {
    if (ended) {
      (void)matmuls.release();
    } else if (stream) {
      matmuls.reset();
      library().dnnl_stream_destroy(stream);
    }
  }
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;
};

bool has_amx_bf16() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
}

}  // namespace

bool onednn_bf16() {
  static const bool use = [] {
    const char* asked = std::getenv("WARPTAPE_ONEDNN");
    return (asked && *asked ? *asked == '1' : has_amx_bf16()) && library().loaded;
  }();
  return use;
}

bool onednn_matmul(const OneDnnMatmul& shape, const void* a, const void* b, const void* bias, void* c) {
  static thread_local ThreadCache cache;
  SingleThread guard;
  if (!cache.stream && library().dnnl_stream_create(&cache.stream, library().engine,
                                                    dnnl_stream_default_flags) != dnnl_success)
    return false;
  if (cache.matmuls->size() >= ThreadCache::kMost) cache.matmuls->clear();
  const Matmul& matmul = cache.matmuls->try_emplace(shape, shape).first->second;
  return matmul.primitive && matmul.run(cache.stream, {a, b, bias, c});
}

}  // namespace warptape::kernels::cpu
