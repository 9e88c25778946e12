// Where a tensor lies.
#pragma once

#include <string>

#include "c10/core/ScalarType.h"

namespace c10 {

using DeviceIndex = int8_t;
enum class DeviceType : int8_t { CPU, CUDA, Meta };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA, kMeta = DeviceType::Meta;

inline std::string DeviceTypeName(DeviceType t, bool lower_case = false) {
  constexpr const char* names[][2] = {{"CPU", "cpu"}, {"CUDA", "cuda"}, {"META", "meta"}};
  return names[static_cast<int>(t)][lower_case];
}
inline std::ostream& operator<<(std::ostream& out, DeviceType t) { return out << DeviceTypeName(t, true); }

class Device {
 public:
  Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {}
  Device(const std::string& text) : type_(kCPU) {
    const auto colon = text.find(':');
    const std::string kind = text.substr(0, colon);
    for (auto t : {kCPU, kCUDA, kMeta})
      if (DeviceTypeName(t, true) == kind) {
        type_ = t;
        if (colon != std::string::npos) index_ = static_cast<DeviceIndex>(std::stoi(text.substr(colon + 1)));
        return;
      }
    TORCH_CHECK(false, "Expected one of cpu, cuda, meta device type at start of device string: ", text);
  }
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ >= 0; }
  bool is_cpu() const { return type_ == kCPU; }
  bool is_cuda() const { return type_ == kCUDA; }
  bool is_meta() const { return type_ == kMeta; }
  std::string str() const {
    return DeviceTypeName(type_, true) + (index_ >= 0 ? ":" + std::to_string(index_) : "");
  }
  friend bool operator==(Device a, Device b) { return a.type_ == b.type_ && a.index_ == b.index_; }
  friend bool operator!=(Device a, Device b) { return !(a == b); }
  friend std::ostream& operator<<(std::ostream& out, const Device& d) { return out << d.str(); }

 private:
  DeviceType type_;
  DeviceIndex index_ = -1;
};

}  // namespace c10
