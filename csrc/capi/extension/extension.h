/* What an extension is built against: one exported function, and a table of functions that it returns.
 *
 * C++ extensions do not use this file themselves: <torch/extension.h> and its kin, headers alone, stand on
 * it. No C++ type crosses this border, so an extension may be compiled by another compiler, and for another
 * C++ standard. Unless said otherwise functions return 0, or -1 after an error: error_kind() and error_text()
 * of the calling thread then say which.
 */
#ifndef WARPTAPE_EXTENSION_H
#define WARPTAPE_EXTENSION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wtx_tensor wtx_tensor; /* reference-counted; null is an undefined tensor */
typedef struct wtx_node wtx_node;     /* of the tape; borrowed wherever it is passed */
typedef struct wtx_result wtx_result; /* where a kernel puts what it returns */

/* As warptape numbers its dtypes; the first twelve are wt_dtype of warptape.h.
   X(WTX_ constant, PyTorch's name, bytes) */
#define WTX_FORALL_DTYPES(X)             \
  X(BOOL, Bool, 1)                       \
  X(UINT8, Byte, 1)                      \
  X(INT8, Char, 1)                       \
  X(INT16, Short, 2)                     \
  X(INT32, Int, 4)                       \
  X(INT64, Long, 8)                      \
  X(FLOAT16, Half, 2)                    \
  X(BFLOAT16, BFloat16, 2)               \
  X(FLOAT32, Float, 4)                   \
  X(FLOAT64, Double, 8)                  \
  X(COMPLEX64, ComplexFloat, 8)          \
  X(COMPLEX128, ComplexDouble, 16)       \
  X(UINT16, UInt16, 2)                   \
  X(UINT32, UInt32, 4)                   \
  X(UINT64, UInt64, 8)                   \
  X(FLOAT8_E4M3FN, Float8_e4m3fn, 1)     \
  X(FLOAT8_E5M2, Float8_e5m2, 1)         \
  X(FLOAT8_E4M3FNUZ, Float8_e4m3fnuz, 1) \
  X(FLOAT8_E5M2FNUZ, Float8_e5m2fnuz, 1) \
  X(FLOAT8_E8M0FNU, Float8_e8m0fnu, 1)
#define WTX_ENUMERATOR(constant, name, bytes) WTX_##constant,
typedef enum { WTX_UNDEFINED = -1, WTX_FORALL_DTYPES(WTX_ENUMERATOR) WTX_NUM_DTYPES } wtx_dtype;
#undef WTX_ENUMERATOR

enum { WTX_CPU, WTX_CUDA, WTX_META };
typedef struct {
  int8_t type;
  int8_t index;
} wtx_device;

typedef enum {
  WTX_ERROR_NONE,
  WTX_ERROR_RUNTIME,
  WTX_ERROR_VALUE,
  WTX_ERROR_TYPE,
  WTX_ERROR_INDEX,
  WTX_ERROR_SHAPE,
  WTX_ERROR_DTYPE,
  WTX_ERROR_DEVICE,
  WTX_ERROR_NOT_IMPLEMENTED,
  WTX_ERROR_OUT_OF_MEMORY,
  WTX_ERROR_LINALG,
  WTX_ERROR_PYTHON /* a Python exception is set */
} wtx_error;

typedef enum {
  WTX_KIND_NONE,
  WTX_KIND_TENSOR,
  WTX_KIND_TENSORS, /* list.data is a wtx_tensor* const* */
  WTX_KIND_BOOL,    /* i */
  WTX_KIND_INT,
  WTX_KIND_DOUBLE,  /* d[0] */
  WTX_KIND_COMPLEX, /* d[0], d[1] */
  WTX_KIND_INTS,    /* list.data is a const int64_t* */
  WTX_KIND_DOUBLES, /* list.data is a const double* */
  WTX_KIND_DTYPE,   /* i */
  WTX_KIND_DEVICE,
  WTX_KIND_STRING, /* list.data is a const char*, list.size bytes */
  WTX_KIND_NUMBERS /* list.data is a const wtx_value*, of bool, int, double or complex */
} wtx_kind;

/* One argument or result. What it points to is borrowed. */
typedef struct {
  wtx_kind kind;
  union {
    wtx_tensor* tensor;
    int64_t i;
    double d[2];
    wtx_device device;
    struct {
      const void* data;
      size_t size;
    } list;
  };
} wtx_value;

/* Sizes and strides live as long as the tensor keeps its geometry. */
typedef struct {
  const int64_t* sizes;
  const int64_t* strides;
  int64_t ndim, numel, offset;
  wtx_dtype dtype;
  wtx_device device;
  int8_t contiguous;
} wtx_info;

typedef enum { WTX_REQUIRES_GRAD, WTX_IS_LEAF, WTX_IS_VIEW } wtx_trait;

/* A kernel of an op that an extension registers: reads args, calls result_push for each of its results, in
 * order. Errors are set by set_error, and -1 returned. */
typedef int (*wtx_kernel)(void* context, const wtx_value* args, size_t num_args, wtx_result* result);
/* The gradients of a node's inputs from those of its outputs. gradients[i] is null where nothing flowed; the
 * kernel puts owned tensors, or null, into results. */
typedef int (*wtx_backward)(void* context, wtx_node* node, wtx_tensor* const* gradients, size_t num_gradients,
                            const uint8_t* wanted, wtx_tensor** results, size_t num_results);

/* What the bindings add; `object` is a PyObject*. The caller holds the GIL. */
typedef struct wtx_python {
  int (*is_tensor)(void* object);
  wtx_tensor* (*tensor_of)(void* object);        /* borrowed from the object */
  void* (*wrap_tensor)(const wtx_tensor* t);     /* new references; None for an undefined tensor */
  int (*dtype_of)(void* object, wtx_dtype* out); /* -1, without an error set, for what is none */
  void* (*wrap_dtype)(wtx_dtype dtype);
  int (*device_of)(void* object, wtx_device* out);
  void* (*wrap_device)(wtx_device device);
  void (*raise)(wtx_error kind, const char* text); /* sets the exception of that kind */
} wtx_python;

typedef struct {
  const char* version; /* of the runtime, as "1.2.3" */

  /* ---- errors and warnings ---- */
  wtx_error (*error_kind)(void);
  const char* (*error_text)(void);
  void (*set_error)(wtx_error kind, const char* text);
  int (*warn)(const char* text);

  /* ---- tensors ---- */
  void (*retain)(wtx_tensor* t);
  void (*release)(wtx_tensor* t);
  void (*info)(const wtx_tensor* t, wtx_info* out);
  int (*has)(const wtx_tensor* t, wtx_trait trait); /* 1 or 0 */
  int (*data)(const wtx_tensor* t, void** out);     /* the first element */
  /* Foreign memory as a tensor; deleter(context), which may be null, is called once at its end. */
  int (*from_blob)(void* data, const int64_t* sizes, const int64_t* strides, size_t ndim, wtx_dtype dtype,
                   wtx_device device, void (*deleter)(void*), void* context, wtx_tensor** out);
  int (*set_data)(wtx_tensor* t, const wtx_tensor* other); /* t takes on other's memory and geometry */
  size_t (*use_count)(const wtx_tensor* t);
  size_t (*storage_bytes)(const wtx_tensor* t);
  int (*shares_storage)(const wtx_tensor* a, const wtx_tensor* b);
  wtx_dtype (*default_dtype)(void);
  int (*deterministic)(void); /* whether deterministic algorithms are asked for */

  /* ---- ops: by the name that PyTorch's C++ has, of the overload that takes these arguments, all given ----
   * A tensor in `out` is owned by the caller; so are those of a list, which itself lives until the thread's
   * next call. */
  int (*call)(const char* name, const wtx_value* args, size_t num_args, wtx_value* out);

  /* ---- the tape ---- */
  int (*grad_mode)(int mode); /* returns the mode before; -1 asks */
  int (*set_requires_grad)(wtx_tensor* t, int value);
  int (*gradient)(const wtx_tensor* t, wtx_tensor** out); /* .grad, or null */
  int (*set_gradient)(wtx_tensor* t, wtx_tensor* gradient);
  int (*backward)(wtx_tensor* const* roots, wtx_tensor* const* gradients, size_t num_roots,
                  wtx_tensor* const* inputs, size_t num_inputs, int retain_graph, int create_graph,
                  int accumulate, wtx_tensor** results);
  /* A node with an edge per input. `drop` frees the context. Owned by what points to it on the tape, and by
   * the caller until node_release. */
  int (*node)(const char* name, wtx_tensor* const* inputs, size_t num_inputs, wtx_backward backward,
              void (*drop)(void*), void* context, wtx_node** out);
  void (*node_release)(wtx_node* node);
  int (*check_inplace)(wtx_tensor* t, const char* name, int recorded);
  int (*node_inplace)(wtx_node* node, wtx_tensor* t);          /* t, changed in place, is its next output */
  int (*node_output)(wtx_node* node, wtx_tensor* t);           /* t, new, is its next output */
  int (*node_save)(wtx_node* node, wtx_tensor* t, int output); /* -1: no output of the node */
  int (*node_saved)(wtx_node* node, size_t i, wtx_tensor** out);
  int (*node_check)(wtx_node* node); /* an error where a backward pass freed what it saved */
  /* What a function returned as an output: a view of it where it is an input or a view. */
  int (*as_output)(wtx_tensor* t, int is_input, wtx_tensor** out);
  int (*bump_version)(wtx_tensor* t);

  /* ---- ops of the extension: name is "namespace::op"; schema and key are PyTorch's ---- */
  int (*define)(const char* space, const char* schema);
  int (*implement)(const char* name, const char* key, wtx_kernel kernel, void* context);
  int (*result_push)(wtx_result* result, const wtx_value* value);
  /* Calls an op that extensions registered: the function for Autograd where an argument requires a gradient
   * and ops are recorded, else that for the device of the first tensor, else one for all. The caller frees
   * the result, whose values it borrows. */
  int (*call_registered)(const char* name, const wtx_value* args, size_t num_args, wtx_result** out);
  size_t (*result_count)(const wtx_result* result);
  wtx_value (*result_value)(const wtx_result* result, size_t i);
  void (*result_free)(wtx_result* result);

  /* ---- threads and devices ---- */
  int (*num_threads)(void);
  int (*parallel_chunks)(int64_t n, int64_t grain, int (*body)(void*, int64_t, int64_t), void* context);
  int (*device_count)(void); /* of CUDA devices; 0 without CUDA */
  int (*current_device)(int* out);
  int (*set_current_device)(int index);
  int (*current_stream)(int index, void** out); /* -1: of the current device */
  int (*set_current_stream)(int index, void* stream);
  int (*record_stream)(const wtx_tensor* t, void* stream);

  const wtx_python* python; /* null where no Python is */
} wtx_api;

/* The table, or null where the extension was built for another version than this library's, or for another
 * state of this file (`interface` is a hash of it). *why then names both, and the file that `address`, of
 * something in the extension, lies in. */
const wtx_api* wtx_extension_api(const char* version, const char* interface, const void* address,
                                 const char** why);

#ifdef __cplusplus
}
#endif

#endif
