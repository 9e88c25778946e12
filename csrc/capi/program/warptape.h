/* Running saved programs without Python: link with libwarptape.so.
 *
 * A program is a file that torch.export.save or torch.jit.save of warptape wrote. It may be run by several
 * threads at once. Functions that can fail return NULL or -1; wt_last_error() then says why.
 */
#ifndef WARPTAPE_H
#define WARPTAPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wt_program wt_program;
typedef struct wt_result wt_result;

typedef enum {
  WT_BOOL,
  WT_UINT8,
  WT_INT8,
  WT_INT16,
  WT_INT32,
  WT_INT64,
  WT_FLOAT16,
  WT_BFLOAT16,
  WT_FLOAT32,
  WT_FLOAT64,
  WT_COMPLEX64,
  WT_COMPLEX128
} wt_dtype;

/* A dense tensor in host memory, the last dim contiguous. */
typedef struct {
  wt_dtype dtype;
  int ndim;
  const int64_t* sizes;
  const void* data;
} wt_tensor;

/* The error of the last call of this thread that failed; "" before any did. */
const char* wt_last_error(void);
typedef enum {
  WT_ERROR_NONE,
  WT_ERROR_OTHER,
  WT_ERROR_VALUE,           /* a file or an argument that is not valid */
  WT_ERROR_NOT_IMPLEMENTED, /* an op or kernel that is not here */
  WT_ERROR_OUT_OF_MEMORY
} wt_error;
wt_error wt_last_error_kind(void);

/* The most bytes that tensors may hold, with those that are kept for later runs; 0 for no limit. A call that
 * needs more fails with WT_ERROR_OUT_OF_MEMORY. A file's contents are in memory besides, while it is opened.
 */
void wt_set_memory_limit(size_t bytes);
/* The most bytes that tensors held since the process began. */
size_t wt_peak_memory(void);
/* The number of threads of a run, at least 1. Before the first run. */
void wt_set_num_threads(int threads);
/* The kernels that were called so far, one a line: the list of a slim build (docs/guides/compression.md). The
 * text lives until this thread asks again. */
const char* wt_kernels_used(void);

/* Opens a file, or a file's contents, which are copied. */
wt_program* wt_program_open(const char* path);
wt_program* wt_program_open_memory(const void* data, size_t bytes);
void wt_program_close(wt_program* program);

/* The program as text: inputs with their dtypes and sizes, the ops, what is returned. Lives as long as it. */
const char* wt_program_text(const wt_program* program);
int wt_program_num_inputs(const wt_program* program);
int wt_program_num_outputs(const wt_program* program);
/* The dtype and number of dims of an input, and its sizes: -1 for one that varies. Returns 0 or -1. */
int wt_program_input(const wt_program* program, int index, wt_dtype* dtype, int* ndim, const int64_t** sizes);

/* Runs the program. The inputs are only read, unless the program writes to them. The caller frees the result.
 */
wt_result* wt_program_run(wt_program* program, const wt_tensor* inputs, int num_inputs);
int wt_result_count(const wt_result* result);
/* An output; its memory belongs to the result. */
wt_tensor wt_result_tensor(const wt_result* result, int index);
void wt_result_free(wt_result* result);

#ifdef __cplusplus
}
#endif

#endif
