// The libraries' functions under their own names, so that our code and cuDNN's frontend headers call them as
// documented: each looks the real one up when it is first called. They are hidden in the plugin, whatever
// else the process has loaded.
#include <cublasLt.h>
#include <cudnn.h>
#include <nvrtc.h>

#include "kernels/cuda/libraries/cufft.h"
#include "kernels/cuda/libraries/library_forward.h"

#define WT_LT(name, parameters, arguments) WT_FORWARD(CublasLt, cublasStatus_t, name, parameters, arguments)
WT_LT(cublasLtCreate, (cublasLtHandle_t * handle), (handle))
WT_LT(cublasLtMatmulDescCreate,
      (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale),
      (desc, compute, scale))
WT_LT(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
WT_LT(cublasLtMatmulDescSetAttribute,
      (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, const void* value, size_t bytes),
      (desc, what, value, bytes))
WT_LT(cublasLtMatrixLayoutCreate,
      (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld),
      (layout, type, rows, cols, ld))
WT_LT(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
WT_LT(cublasLtMatrixLayoutSetAttribute,
      (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what, const void* value, size_t bytes),
      (layout, what, value, bytes))
WT_LT(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference), (preference))
WT_LT(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference))
WT_LT(cublasLtMatmulPreferenceSetAttribute,
      (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what, const void* value,
       size_t bytes),
      (preference, what, value, bytes))
WT_LT(cublasLtMatmulAlgoGetHeuristic,
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
       cublasLtMatmulHeuristicResult_t results[], int* found),
      (handle, desc, a, b, c, d, preference, wanted, results, found))
WT_LT(cublasLtMatmulAlgoCheck,
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
       cublasLtMatmulHeuristicResult_t* result),
      (handle, desc, a, b, c, d, algorithm, result))
WT_LT(cublasLtMatmul,
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
       cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
       const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
       const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes, cudaStream_t stream),
      (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace,
       workspace_bytes, stream))
WT_FORWARD(CublasLt, const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))

#define WT_DNN(name, parameters, arguments) WT_FORWARD(Cudnn, cudnnStatus_t, name, parameters, arguments)
WT_DNN(cudnnCreate, (cudnnHandle_t * handle), (handle))
WT_DNN(cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
WT_DNN(cudnnGetStream, (cudnnHandle_t handle, cudaStream_t* stream), (handle, stream))
WT_DNN(cudnnBackendCreateDescriptor, (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* desc),
       (type, desc))
WT_DNN(cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t desc), (desc))
WT_DNN(cudnnBackendFinalize, (cudnnBackendDescriptor_t desc), (desc))
WT_DNN(cudnnBackendExecute,
       (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack),
       (handle, plan, pack))
WT_DNN(cudnnBackendGetAttribute,
       (cudnnBackendDescriptor_t const desc, cudnnBackendAttributeName_t name,
        cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* values),
       (desc, name, type, wanted, count, values))
WT_DNN(cudnnBackendSetAttribute,
       (cudnnBackendDescriptor_t desc, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
        int64_t count, const void* values),
       (desc, name, type, count, values))
#if CUDNN_VERSION >= 92300
WT_DNN(cudnnGetExecutionPlanWorkspaceSize,
       (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack, size_t* bytes),
       (handle, plan, pack, bytes))
#endif
// The frontend's graphs name these, though no graph of ours reorders filters.
WT_DNN(cudnnCreateFilterDescriptor, (cudnnFilterDescriptor_t * desc), (desc))
WT_DNN(cudnnDestroyFilterDescriptor, (cudnnFilterDescriptor_t desc), (desc))
WT_DNN(cudnnSetFilterNdDescriptor,
       (cudnnFilterDescriptor_t desc, cudnnDataType_t type, cudnnTensorFormat_t format, int dims,
        const int sizes[]),
       (desc, type, format, dims, sizes))
WT_DNN(cudnnReorderFilterAndBias,
       (cudnnHandle_t handle, const cudnnFilterDescriptor_t desc, cudnnReorderType_t type, const void* filter,
        void* new_filter, int with_bias, const void* bias, void* new_bias),
       (handle, desc, type, filter, new_filter, with_bias, bias, new_bias))
WT_FORWARD(Cudnn, size_t, cudnnGetVersion, (), ())
WT_FORWARD(Cudnn, const char*, cudnnGetErrorString, (cudnnStatus_t status), (status))
WT_FORWARD(Cudnn, void, cudnnGetLastErrorString, (char* text, size_t bytes), (text, bytes))

#define WT_RTC(name, parameters, arguments) WT_FORWARD(Nvrtc, nvrtcResult, name, parameters, arguments)
WT_RTC(nvrtcCreateProgram,
       (nvrtcProgram * program, const char* source, const char* name, int count, const char* const* headers,
        const char* const* names),
       (program, source, name, count, headers, names))
WT_RTC(nvrtcDestroyProgram, (nvrtcProgram * program), (program))
WT_RTC(nvrtcCompileProgram, (nvrtcProgram program, int count, const char* const* options),
       (program, count, options))
WT_RTC(nvrtcGetCUBINSize, (nvrtcProgram program, size_t* bytes), (program, bytes))
WT_RTC(nvrtcGetCUBIN, (nvrtcProgram program, char* code), (program, code))
WT_RTC(nvrtcGetProgramLogSize, (nvrtcProgram program, size_t* bytes), (program, bytes))
WT_RTC(nvrtcGetProgramLog, (nvrtcProgram program, char* text), (program, text))

#define WT_FFT(name, parameters, arguments) WT_FORWARD(Cufft, cufftResult, name, parameters, arguments)
WT_FFT(cufftCreate, (cufftHandle * plan), (plan))
WT_FFT(cufftDestroy, (cufftHandle plan), (plan))
WT_FFT(cufftSetAutoAllocation, (cufftHandle plan, int on), (plan, on))
WT_FFT(cufftSetStream, (cufftHandle plan, cudaStream_t stream), (plan, stream))
WT_FFT(cufftSetWorkArea, (cufftHandle plan, void* memory), (plan, memory))
WT_FFT(cufftXtMakePlanMany,
       (cufftHandle plan, int rank, long long* sizes, long long* in_sizes, long long in_stride,
        long long in_distance, FftType in, long long* out_sizes, long long out_stride, long long out_distance,
        FftType out, long long batch, size_t* work_bytes, FftType compute),
       (plan, rank, sizes, in_sizes, in_stride, in_distance, in, out_sizes, out_stride, out_distance, out,
        batch, work_bytes, compute))
WT_FFT(cufftXtExec, (cufftHandle plan, void* in, void* out, int direction), (plan, in, out, direction))
