// The C interface: warptape.h.
#include <fstream>
#include <mutex>

#include "capi/program/warptape.h"
#include "core/export.h"
#include "core/limits.h"
#include "graph/passes/passes.h"
#include "graph/record/region.h"
#include "graph/text/graph_file.h"
#include "kernels/runtime/parallel.h"
#include "tensor/factory.h"

using namespace warptape;

struct wt_program {
  graph::Graph graph;
  std::string text;
  std::vector<Shape> sizes;  // of inputs
  std::shared_ptr<graph::Compiled> compiled = std::make_shared<graph::Compiled>();
};

struct wt_result {
  std::vector<Tensor> tensors;
};

namespace {

struct OfThread {
  std::string last_error, kernel_names;
  wt_error last_kind = WT_ERROR_NONE;
};
PerThread<OfThread> of_thread;

static_assert(static_cast<int>(DType::Bool) == WT_BOOL && static_cast<int>(DType::Float32) == WT_FLOAT32 &&
              static_cast<int>(DType::Complex128) == WT_COMPLEX128);

void note(wt_error kind, const char* text) {
  of_thread->last_kind = kind;
  of_thread->last_error = text;
}

// What f returns, or `failed` with the text of what it threw.
template <class F, class R>
R guarded(R failed, F&& f) noexcept {
  try {
    return f();
  } catch (const OutOfMemoryError& e) {
    note(WT_ERROR_OUT_OF_MEMORY, e.what());
  } catch (const NotImplementedError& e) {
    note(WT_ERROR_NOT_IMPLEMENTED, e.what());
  } catch (const ValueError& e) {
    note(WT_ERROR_VALUE, e.what());
  } catch (const ShapeError& e) {
    note(WT_ERROR_VALUE, e.what());
  } catch (const DtypeError& e) {
    note(WT_ERROR_VALUE, e.what());
  } catch (const std::bad_alloc&) {
    note(WT_ERROR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    note(WT_ERROR_OTHER, e.what());
  } catch (...) {
    note(WT_ERROR_OTHER, "unknown error");
  }
  return failed;
}

wt_program* open(std::string_view bytes) {
  static std::once_flag once;
  std::call_once(once, graph::init);
  auto program = std::make_unique<wt_program>();
  program->graph = graph::from_bytes(bytes).graph;
  program->text = program->graph.text();
  // Nothing changes a constant after this, and no gradients are asked for.
  graph::optimise(program->graph, {.plan_memory = true, .freeze = true, .gradients = false});
  for (graph::ValueId id : program->graph.inputs) {
    Shape& sizes = program->sizes.emplace_back();
    for (graph::Dim d : program->graph.values[id.id].sizes)
      sizes.push_back(d.expr == graph::Dim::kNumber ? d.value : -1);
  }
  return program.release();
}

// A view of the caller's memory, which must outlive it.
Tensor borrowed(const wt_tensor& t) {
  WT_CHECK(t.dtype >= WT_BOOL && t.dtype <= WT_COMPLEX128, ValueError, "unknown dtype ", t.dtype);
  WT_CHECK(t.ndim >= 0 && t.ndim <= 64 && (t.ndim == 0 || t.sizes), ValueError,
           "bad number of dims: ", t.ndim);
  const Shape sizes(t.sizes, t.sizes + t.ndim);
  const auto dtype = static_cast<DType>(t.dtype);
  const int64_t n = numel_of(sizes);
  WT_CHECK(t.data || n == 0, ValueError, "an input without data");
  auto storage = Storage::wrap(
      const_cast<void*>(t.data), static_cast<size_t>(n) * itemsize(dtype), {}, [](void*) {}, nullptr);
  return Tensor(
      Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), dtype, sizes, contiguous_strides(sizes), 0)));
}

// Notes the calls of a run and fuses them, as torch.compile does.
class Fused {
 public:
  explicit Fused(wt_program& p) : entered_(graph::Region::of_thread().enter(p.compiled)) {}
  void leave() {
    if (std::exchange(entered_, false)) graph::Region::of_thread().leave();
  }
  ~Fused() {
    guarded(0, [&] { return leave(), 0; });
  }

 private:
  bool entered_;
};

wt_result* run(wt_program& program, std::span<const wt_tensor> inputs) {
  Restore<bool> no_grad(own_thread_state().grad_mode, false);
  auto result = std::make_unique<wt_result>();
  {
    std::vector<Tensor> tensors;
    for (const wt_tensor& t : inputs) tensors.push_back(borrowed(t));
    Fused fused(program);
    result->tensors = program.graph.run(tensors);
    fused.leave();
    for (Tensor& t : result->tensors) {
      t = raw_contiguous(graph::moved(t, {}));
      const auto same = [&](const Tensor& in) { return &in.storage() == &t.storage(); };
      if (std::ranges::any_of(tensors, same)) t = raw_clone(t);  // the caller's memory
    }
  }
  return result.release();
}

}  // namespace

extern "C" {

WT_API const char* wt_last_error(void) { return of_thread->last_error.c_str(); }
WT_API wt_error wt_last_error_kind(void) { return of_thread->last_kind; }

WT_API void wt_set_memory_limit(size_t bytes) { set_cpu_memory_limit(bytes); }
WT_API size_t wt_peak_memory(void) { return static_cast<size_t>(cpu_allocator().stats().peak_reserved); }
WT_API void wt_set_num_threads(int threads) { kernels::cpu::set_num_threads(std::max(threads, 1)); }
WT_API const char* wt_kernels_used(void) {
  of_thread->kernel_names.clear();
  for (const std::string& name : kernels_used()) of_thread->kernel_names += name + "\n";
  return of_thread->kernel_names.c_str();
}

WT_API wt_program* wt_program_open(const char* path) {
  return guarded(static_cast<wt_program*>(nullptr), [&] {
    std::ifstream file(path, std::ios::binary);
    WT_CHECK(file, ValueError, "cannot open ", path);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    return open(bytes);
  });
}

WT_API wt_program* wt_program_open_memory(const void* data, size_t bytes) {
  return guarded(static_cast<wt_program*>(nullptr),
                 [&] { return open({static_cast<const char*>(data), bytes}); });
}

WT_API void wt_program_close(wt_program* program) { delete program; }

WT_API const char* wt_program_text(const wt_program* program) { return program->text.c_str(); }

WT_API int wt_program_num_inputs(const wt_program* program) {
  return static_cast<int>(program->graph.inputs.size());
}

WT_API int wt_program_num_outputs(const wt_program* program) {
  return static_cast<int>(program->graph.outputs.size());
}

WT_API int wt_program_input(const wt_program* program, int index, wt_dtype* dtype, int* ndim,
                            const int64_t** sizes) {
  return guarded(-1, [&] {
    WT_CHECK(index >= 0 && index < wt_program_num_inputs(program), ValueError, "there is no input ", index);
    const Shape& shape = program->sizes[static_cast<size_t>(index)];
    *dtype = static_cast<wt_dtype>(
        program->graph.values[program->graph.inputs[static_cast<size_t>(index)].id].dtype);
    *ndim = static_cast<int>(shape.size());
    *sizes = shape.data();
    return 0;
  });
}

WT_API wt_result* wt_program_run(wt_program* program, const wt_tensor* inputs, int num_inputs) {
  return guarded(static_cast<wt_result*>(nullptr), [&] {
    WT_CHECK(num_inputs >= 0 && (inputs || !num_inputs), ValueError, "no inputs were given");
    return run(*program, {inputs, static_cast<size_t>(num_inputs)});
  });
}

WT_API int wt_result_count(const wt_result* result) { return static_cast<int>(result->tensors.size()); }

WT_API wt_tensor wt_result_tensor(const wt_result* result, int index) {
  if (index < 0 || index >= wt_result_count(result)) return {};
  const Tensor& t = result->tensors[static_cast<size_t>(index)];
  return {static_cast<wt_dtype>(t.dtype()), static_cast<int>(t.ndim()), t.sizes().data(),
          t.numel() ? t.data() : nullptr};
}

WT_API void wt_result_free(wt_result* result) { delete result; }
}
