// The interface for extensions (extension.h): errors, tensors, threads, devices, and the table of it all.
#include <dlfcn.h>

#include <mutex>

#include "autograd/tape.h"
#include "capi/extension/extension_parts.h"
#include "core/build_info.h"
#include "core/device_runtime.h"
#include "core/frontend.h"
#include "kernels/runtime/parallel.h"

namespace warptape::extension {

namespace {

struct LastError {
  wtx_error kind = WTX_ERROR_NONE;
  std::string text;
};
PerThread<LastError> last_error;

static_assert(kNumDTypes == WTX_NUM_DTYPES && static_cast<int>(DType::Complex128) == WTX_COMPLEX128);
#define WTX_SIZE(constant, name, bytes) static_assert(itemsize(DType{WTX_##constant}) == bytes);
WTX_FORALL_DTYPES(WTX_SIZE)
#undef WTX_SIZE

void set_error(wtx_error kind, const char* text) {
  last_error->kind = kind;
  last_error->text = text;
}

template <class E>
[[noreturn]] void raise() {
  throw E(last_error->text);
}

// ---- tensors ----

void info(const wtx_tensor* handle, wtx_info* out) {
  const TensorImpl& t = *impl_of(handle);
  *out = {.sizes = t.sizes.data(),
          .strides = t.strides.data(),
          .ndim = static_cast<int64_t>(t.sizes.size()),
          .numel = t.numel,
          .offset = t.offset,
          .dtype = dtype_of(t.dtype),
          .device = device_of(t.storage->device()),
          .contiguous = t.contiguous};
}

int has(const wtx_tensor* handle, wtx_trait trait) {
  const Tensor t = tensor_of(handle);
  return trait == WTX_REQUIRES_GRAD ? requires_grad(t) : trait == WTX_IS_LEAF ? is_leaf(t) : is_view(t);
}

// The bytes that elements of such a geometry reach.
size_t reach(IntList sizes, IntList strides, DType dtype) {
  if (numel_of(sizes, "from_blob") == 0) return 0;
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    WT_CHECK(strides[i] >= 0, ShapeError, "from_blob: expected strides of at least 0, got ",
             AsShape{strides});
    last += (sizes[i] - 1) * strides[i];
  }
  return static_cast<size_t>(last + 1) * itemsize(dtype);
}

int from_blob(void* data, const int64_t* sizes, const int64_t* strides, size_t ndim, wtx_dtype type,
              wtx_device device, void (*deleter)(void*), void* context, wtx_tensor** out) {
  return guarded([&] {
    const DType dtype = dtype_of(int64_t{type});
    const Shape shape(sizes, sizes + ndim);
    const Shape steps = strides ? Shape(strides, strides + ndim) : contiguous_strides(shape);
    const size_t bytes = reach(shape, steps, dtype);
    WT_CHECK(data || bytes == 0, ValueError, "from_blob: expected memory, got a null pointer");
    auto storage =
        Storage::wrap(data, bytes, resolved(device_of(device)), deleter ? deleter : [](void*) {}, context);
    *out = give(Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), dtype, shape, steps, 0))));
  });
}

int set_data(wtx_tensor* t, const wtx_tensor* other) {
  return guarded([&] {
    const Tensor self = tensor_of(t), from = tensor_of(other);
    WT_CHECK(!requires_grad(self) || is_differentiable(from.dtype()), DtypeError,
             "data set to a tensor that requires gradients must be floating point, got ", from.dtype());
    self->set_storage(from->storage, from.dtype());
    self->set_geometry(from.sizes(), from.strides(), from.offset());
  });
}

void fill_tensors(wtx_api& api) {
  api.retain = [](wtx_tensor* t) { impl_of(t)->retain(); };
  api.release = [](wtx_tensor* t) { impl_of(t)->release(); };
  api.info = info;
  api.has = has;
  api.data = [](const wtx_tensor* t, void** out) { return guarded([&] { *out = tensor_of(t).data(); }); };
  api.from_blob = from_blob;
  api.set_data = set_data;
  api.use_count = [](const wtx_tensor* t) { return impl_of(t)->use_count(); };
  api.storage_bytes = [](const wtx_tensor* t) { return impl_of(t)->storage->bytes(); };
  api.shares_storage = [](const wtx_tensor* a, const wtx_tensor* b) {
    return int{impl_of(a)->storage == impl_of(b)->storage};
  };
  api.deterministic = [] { return int{rank_context().deterministic_algorithms}; };
  api.default_dtype = [] { return dtype_of(rank_context().default_dtype); };
}

// ---- threads and devices ----

int parallel_chunks(int64_t n, int64_t grain, int (*body)(void*, int64_t, int64_t), void* context) {
  return guarded([&] {
    kernels::cpu::parallel_for(n, std::max<int64_t>(grain, 1), [&](int64_t begin, int64_t end) {
      if (body(context, begin, end) != 0) throw_error();
    });
  });
}

DeviceRuntime& cuda() { return runtime_of(DeviceType::CUDA); }

int current_or(int index) { return index < 0 ? cuda().current_device() : index; }

void fill_devices(wtx_api& api) {
  api.num_threads = kernels::cpu::num_threads;
  api.parallel_chunks = parallel_chunks;
  api.device_count = [] {
    DeviceRuntime* runtime = find_runtime(DeviceType::CUDA);
    return runtime ? runtime->device_count() : 0;
  };
  api.current_device = [](int* out) { return guarded([&] { *out = cuda().current_device(); }); };
  api.set_current_device = [](int index) { return guarded([&] { cuda().set_current_device(index); }); };
  api.current_stream = [](int index, void** out) {
    return guarded([&] { *out = cuda().current_stream(current_or(index)); });
  };
  api.set_current_stream = [](int index, void* stream) {
    return guarded([&] { cuda().set_current_stream(current_or(index), stream); });
  };
  api.record_stream = [](const wtx_tensor* t, void* stream) {
    return guarded([&] {
      const Tensor given = tensor_of(t);
      cuda().record_stream(given.storage().data(), given.device().index, stream);
    });
  };
}

const std::string& own_version() {
  static const std::string version = [] {
    for (const auto& [name, value] : build_info())
      if (name == "version") return value;
    return std::string();
  }();
  return version;
}

std::mutex refused_mutex;
std::vector<std::string> refused_texts;

}  // namespace

void note_error() noexcept {
  try {
    throw;
  } catch (const PythonErrorSet&) {
    set_error(WTX_ERROR_PYTHON, "a Python exception was raised");
  } catch (const ShapeError& e) {
    set_error(WTX_ERROR_SHAPE, e.what());
  } catch (const DtypeError& e) {
    set_error(WTX_ERROR_DTYPE, e.what());
  } catch (const DeviceError& e) {
    set_error(WTX_ERROR_DEVICE, e.what());
  } catch (const LinAlgError& e) {
    set_error(WTX_ERROR_LINALG, e.what());
  } catch (const OutOfMemoryError& e) {
    set_error(WTX_ERROR_OUT_OF_MEMORY, e.what());
  } catch (const IndexError& e) {
    set_error(WTX_ERROR_INDEX, e.what());
  } catch (const TypeError& e) {
    set_error(WTX_ERROR_TYPE, e.what());
  } catch (const ValueError& e) {
    set_error(WTX_ERROR_VALUE, e.what());
  } catch (const NotImplementedError& e) {
    set_error(WTX_ERROR_NOT_IMPLEMENTED, e.what());
  } catch (const std::bad_alloc&) {
    set_error(WTX_ERROR_OUT_OF_MEMORY, "host memory is exhausted");
  } catch (const std::exception& e) {
    set_error(WTX_ERROR_RUNTIME, e.what());
  } catch (...) {
    set_error(WTX_ERROR_RUNTIME, "unknown C++ exception");
  }
}

void throw_error() {
  switch (last_error->kind) {
    case WTX_ERROR_VALUE:
      raise<ValueError>();
    case WTX_ERROR_TYPE:
      raise<TypeError>();
    case WTX_ERROR_INDEX:
      raise<IndexError>();
    case WTX_ERROR_SHAPE:
      raise<ShapeError>();
    case WTX_ERROR_DTYPE:
      raise<DtypeError>();
    case WTX_ERROR_DEVICE:
      raise<DeviceError>();
    case WTX_ERROR_NOT_IMPLEMENTED:
      raise<NotImplementedError>();
    case WTX_ERROR_OUT_OF_MEMORY:
      raise<OutOfMemoryError>();
    case WTX_ERROR_LINALG:
      raise<LinAlgError>();
    case WTX_ERROR_PYTHON:
      throw PythonErrorSet();
    default:
      raise<Error>();
  }
}

std::vector<std::string> refused() {
  std::lock_guard lock(refused_mutex);
  return refused_texts;
}

const wtx_api& table() {
  static const wtx_api table = [] {
    wtx_api api{};
    api.version = own_version().c_str();
    api.error_kind = [] { return last_error->kind; };
    api.error_text = [] { return last_error->text.c_str(); };
    api.set_error = set_error;
    api.warn = [](const char* text) { return guarded([&] { warn(text); }); };
    fill_tensors(api);
    fill_calls(api);
    fill_tape(api);
    fill_ops(api);
    fill_devices(api);
    api.python = frontend().extension_functions();
    return api;
  }();
  return table;
}

}  // namespace warptape::extension

extern "C" WT_API const wtx_api* wtx_extension_api(const char* version, const char* interface,
                                                   const void* address, const char** why) {
  namespace e = warptape::extension;
  const bool same_version = e::own_version() == version;
  if (same_version && std::string_view(interface) == WARPTAPE_INTERFACE) return &e::table();
  Dl_info info{};
  const char* file = dladdr(address, &info) && info.dli_fname ? info.dli_fname : "an extension";
  const auto named = [&](const std::string& v, const char* i) {
    return same_version ? v + " (interface " + i + ")" : v;
  };
  static warptape::PerThread<std::string> of_thread;
  std::string& text = *of_thread;
  text = warptape::message(file, " was built for warptape ", named(version, interface),
                           ", and this is warptape ", named(e::own_version(), WARPTAPE_INTERFACE),
                           ": build the extension again");
  std::lock_guard lock(e::refused_mutex);
  e::refused_texts.push_back(text);
  *why = text.c_str();
  return nullptr;
}
