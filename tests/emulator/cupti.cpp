// The emulated CUPTI; see cupti.h. Records lie one after the other in the client's buffers, each in a slot of
// kSlot bytes.
#include "cupti.h"

#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "internal.h"

namespace emulator {
namespace {

constexpr size_t kSlot = 128;
static_assert(sizeof(CUpti_ActivityKernel10) <= kSlot && sizeof(CUpti_ActivityMemcpy6) <= kSlot);

CUpti_BuffersCallbackRequestFunc g_request = nullptr;
CUpti_BuffersCallbackCompleteFunc g_complete = nullptr;
CUpti_TimestampCallbackFunc g_clock = nullptr;
auto& g_kinds = *new std::set<CUpti_ActivityKind>;
auto& g_names = *new std::set<std::string>;
uint8_t* g_buffer = nullptr;
size_t g_size = 0, g_used = 0;
uint32_t g_calls = 0;
thread_local std::vector<uint64_t> t_external;
thread_local size_t t_read = 0;  // of the buffer that is being completed

void complete() {
  if (!g_buffer) return;
  t_read = 0;
  g_complete(nullptr, 0, std::exchange(g_buffer, nullptr), g_size, std::exchange(g_used, 0));
}

template <class Record>
void append(Record record) {
  if (!g_kinds.count(record.kind)) return;
  if (g_buffer && g_used + kSlot > g_size) complete();
  if (!g_buffer) {
    size_t records = 0;
    g_request(&g_buffer, &g_size, &records);
  }
  memcpy(g_buffer + g_used, &record, sizeof record);
  g_used += kSlot;
}

}  // namespace

uint64_t activity_clock() { return g_clock && !g_kinds.empty() ? g_clock() : 0; }

uint32_t begin_activity() {
  if (g_kinds.empty()) return 0;
  const uint32_t call = ++g_calls;
  if (!t_external.empty()) {
    CUpti_ActivityExternalCorrelation r{};
    r.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    r.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
    r.externalId = t_external.back();
    r.correlationId = call;
    append(r);
  }
  return call;
}

void end_activity(const Activity& a) {
  if (!a.call) return;
  auto fill = [&](auto record, CUpti_ActivityKind kind) {
    record.kind = kind;
    record.start = a.start, record.end = activity_clock(), record.bytes = a.bytes;
    record.deviceId = static_cast<uint32_t>(a.device), record.streamId = a.stream;
    record.correlationId = a.call;
    return record;
  };
  if (a.kind == Activity::Kind::Kernel) {
    auto r = fill(CUpti_ActivityKernel10{}, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    r.name = g_names.insert(a.name).first->c_str();
    append(r);
  } else if (a.kind == Activity::Kind::Copy) {
    auto r = fill(CUpti_ActivityMemcpy6{}, CUPTI_ACTIVITY_KIND_MEMCPY);
    r.copyKind = a.from >= 0 ? (a.to >= 0 ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOD : CUPTI_ACTIVITY_MEMCPY_KIND_DTOH)
                             : CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
    append(r);
  } else {
    append(fill(CUpti_ActivityMemset4{}, CUPTI_ACTIVITY_KIND_MEMSET));
  }
}

void* cupti_symbol(const std::string& name) {
#define WT_EMULATED(NAME) \
  if (name == #NAME) return reinterpret_cast<void*>(&::NAME)
  WT_EMULATED(cuptiGetResultString);
  WT_EMULATED(cuptiActivityRegisterCallbacks);
  WT_EMULATED(cuptiActivityRegisterTimestampCallback);
  WT_EMULATED(cuptiActivityEnable);
  WT_EMULATED(cuptiActivityDisable);
  WT_EMULATED(cuptiActivityFlushAll);
  WT_EMULATED(cuptiActivityGetNextRecord);
  WT_EMULATED(cuptiActivityPushExternalCorrelationId);
  WT_EMULATED(cuptiActivityPopExternalCorrelationId);
#undef WT_EMULATED
  return nullptr;
}

}  // namespace emulator

using namespace emulator;

CUptiResult cuptiGetResultString(CUptiResult, const char** text) {
  *text = "an emulated error";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  g_request = request, g_complete = complete;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
  g_clock = clock;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  auto held = lock();
  if (!g_request) return CUPTI_ERROR_INVALID_PARAMETER;
  g_kinds.insert(kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  auto held = lock();
  g_kinds.erase(kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t) {
  auto held = lock();
  complete();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  if (t_read + kSlot > valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(buffer + t_read);
  t_read += kSlot;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t id) {
  t_external.push_back(id);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t* last) {
  if (t_external.empty()) return CUPTI_ERROR_INVALID_PARAMETER;
  *last = t_external.back();
  t_external.pop_back();
  return CUPTI_SUCCESS;
}
