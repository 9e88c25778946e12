// The part of CUPTI's activity interface that the plugin uses, for Note [Emulated CUDA]: launches, copies and
// fills are noted when the emulated stream runs them.
#pragma once

#include <cstddef>
#include <cstdint>

#define CUPTIAPI

using CUcontext = void*;
enum CUptiResult { CUPTI_SUCCESS = 0, CUPTI_ERROR_INVALID_PARAMETER = 1, CUPTI_ERROR_MAX_LIMIT_REACHED = 12 };
enum CUpti_ActivityKind {
  CUPTI_ACTIVITY_KIND_MEMCPY = 1,
  CUPTI_ACTIVITY_KIND_MEMSET = 2,
  CUPTI_ACTIVITY_KIND_KERNEL = 3,
  CUPTI_ACTIVITY_KIND_DRIVER = 4,
  CUPTI_ACTIVITY_KIND_RUNTIME = 5,
  CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
  CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION = 39,
};
enum CUpti_ActivityMemcpyKind {
  CUPTI_ACTIVITY_MEMCPY_KIND_HTOD = 1,
  CUPTI_ACTIVITY_MEMCPY_KIND_DTOH = 2,
  CUPTI_ACTIVITY_MEMCPY_KIND_DTOD = 8,
  CUPTI_ACTIVITY_MEMCPY_KIND_PTOP = 10,
};
enum CUpti_ExternalCorrelationKind { CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 = 3 };
enum CUpti_ActivityFlag { CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1 };

struct CUpti_Activity {
  CUpti_ActivityKind kind;
};
struct CUpti_ActivityTimed : CUpti_Activity {
  uint64_t start, end, bytes;
  uint32_t deviceId, streamId, correlationId;
};
struct CUpti_ActivityKernel10 : CUpti_ActivityTimed {
  const char* name;
};
struct CUpti_ActivityMemcpy6 : CUpti_ActivityTimed {
  uint8_t copyKind;
};
struct CUpti_ActivityMemset4 : CUpti_ActivityTimed {};
struct CUpti_ActivityExternalCorrelation : CUpti_Activity {
  CUpti_ExternalCorrelationKind externalKind;
  uint64_t externalId;
  uint32_t correlationId;
};

using CUpti_BuffersCallbackRequestFunc = void (*)(uint8_t** buffer, size_t* size, size_t* max_records);
using CUpti_BuffersCallbackCompleteFunc = void (*)(CUcontext context, uint32_t stream, uint8_t* buffer,
                                                   size_t size, size_t valid_size);
using CUpti_TimestampCallbackFunc = uint64_t (*)();

extern "C" {
CUptiResult cuptiGetResultString(CUptiResult result, const char** text);
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete);
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock);
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind);
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind);
CUptiResult cuptiActivityFlushAll(uint32_t flag);
CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record);
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id);
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* last);
}
