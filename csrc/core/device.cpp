#include "core/device.h"

#include <charconv>
#include <ostream>

#include "core/errors.h"

namespace warptape {

const char* name(DeviceType t) {
  constexpr const char* names[kNumDeviceTypes] = {"cpu", "cuda", "meta"};
  return names[static_cast<int>(t)];
}

std::string to_string(Device d) {
  std::string out = name(d.type);
  if (d.is_accelerator() && d.index >= 0) out += ":" + std::to_string(d.index);
  return out;
}

std::ostream& operator<<(std::ostream& out, Device d) { return out << to_string(d); }

Device parse_device(std::string_view text) {
  std::string_view kind = text.substr(0, text.find(':'));
  for (int t = 0; t < kNumDeviceTypes; ++t) {
    if (kind != name(static_cast<DeviceType>(t))) continue;
    Device d{static_cast<DeviceType>(t), -1};
    if (kind.size() == text.size()) return d;
    std::string_view digits = text.substr(kind.size() + 1);
    int index = -1;
    auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (failed != std::errc() || end != digits.data() + digits.size() || index < 0 || index > 127) break;
    if (digits.size() > 1 && digits[0] == '0') break;
    d.index = static_cast<int8_t>(index);
    return d;
  }
  throw DeviceError(message("device: expected 'cpu', 'cuda', 'cuda:N' or 'meta', got '", text, "'"));
}

}  // namespace warptape
