// Where data lives: a kind of device and its number.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "core/export.h"

namespace warptape {

struct Device {
  DeviceType type = DeviceType::CPU;
  int8_t index = 0;  // -1: the calling thread's current device of that type; no tensor lies there
  constexpr bool operator==(const Device& o) const { return type == o.type && index == o.index; }
  constexpr bool is_cpu() const { return type == DeviceType::CPU; }
  constexpr bool is_cuda() const { return type == DeviceType::CUDA; }
  constexpr bool is_meta() const { return type == DeviceType::Meta; }
  // What most code asks instead of the kind. The host reads and writes its memory, and its kernels are done
  // when they return.
  constexpr bool is_host() const { return type == DeviceType::CPU; }
  // It has a runtime, and runs what it is given later, in the order of a stream.
  constexpr bool is_accelerator() const { return !is_host() && !is_meta(); }
};

WT_API const char* name(DeviceType t);  // "cpu", "cuda", "meta"
WT_API std::string to_string(Device d);
WT_API std::ostream& operator<<(std::ostream& out, Device d);
// Parses "cpu" and its like (index -1) and "cuda:1" and its like; throws DeviceError that lists what there
// is.
WT_API Device parse_device(std::string_view text);

WT_API Device resolve_accelerator(Device d);  // in device_runtime.cpp
// The device that `d` means here and now. Called where tensors are made or moved. DeviceError for a number
// that there is not, or where there is no such device at all.
inline Device resolved(Device d) {
  return __builtin_expect(d.is_accelerator(), 0) ? resolve_accelerator(d) : d;
}

}  // namespace warptape
