// Rounds weights of linear layers to 8 or 4 bits and packs them for quant_linear.cpp.
#include <cstring>

#include "kernels/dispatch.h"
#include "kernels/quant/quant_linear.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// As memory of the scales keeps it; a scale is rounded away from zero, so that no code is cut off.
WT_INLINE float stored(float x, bool half, bool away) {
  if (!half) return x;
  Half h(x);
  if (away && __builtin_fabsf(float(h)) < __builtin_fabsf(x)) ++h.bits;
  return float(h);
}

// How the values of one group are coded: the nearest of 0 ... levels to (v - minimum) / scale.
struct Code {
  float scale, minimum;
  int levels;

  WT_INLINE uint8_t operator()(float v) const {
    const float c = scale == 0 ? (minimum == 0 ? 0 : -minimum) : __builtin_nearbyintf((v - minimum) / scale);
    return uint8_t(c < 0 ? 0 : c > float(levels) ? levels : int(c));
  }
};

// Between the least and the greatest value.
WT_INLINE Code code_with_minimum(const float* v, int64_t n, int bits, bool half) {
  float least = v[0], most = v[0];
  for (int64_t i = 1; i < n; ++i) least = v[i] < least ? v[i] : least, most = v[i] > most ? v[i] : most;
  const int levels = (1 << bits) - 1;
  return {stored((most - least) / float(levels), half, true), stored(least, half, false), levels};
}

// About zero, which has the code 2 ^ (bits - 1). Of 16 codes there is one more below zero than above: it goes
// to the value of greatest magnitude, as in llama.cpp's Q4_0.
WT_INLINE Code code_about_zero(const float* v, int64_t n, int bits, bool half) {
  float top = 0;
  for (int64_t i = 0; i < n; ++i) top = __builtin_fabsf(v[i]) > __builtin_fabsf(top) ? v[i] : top;
  const float scale = stored(bits == 8 ? __builtin_fabsf(top) / 127 : top / -8, half, true);
  const int zero = 1 << (bits - 1);
  return {scale, -scale * float(zero), 2 * zero - 1};
}

// The place of the code of output `lane`, input k, in a panel.
WT_INLINE void put_code(uint8_t* panel, int64_t bits, int64_t lane, int64_t k, uint8_t code) {
  if (bits == 8)
    panel[(k / 4 * kPanelOutputs + lane) * 4 + k % 4] = code;
  else
    panel[(k / 8 * kPanelOutputs + lane) * 4 + k % 4] |= uint8_t(code << (k & 4));
}

void put_scale(void* scales, int64_t at, float value, bool half) {
  if (half)
    static_cast<Half*>(scales)[at] = Half(value);
  else
    static_cast<float*>(scales)[at] = value;
}

bool quantize_output(const QuantizePlan& p, int64_t output, uint8_t* panel) {
  const int64_t lane = output % kPanelOutputs, bits = p.format.bits;
  const int64_t group = p.format.group ? p.format.group : p.inputs;
  const int64_t groups = p.format.group ? p.format.groups(p.inputs) : 1;
  const bool half = p.format.group != 0;
  bool finite = true;
  for (int64_t g = 0; g < groups; ++g) {
    const float* v = p.weight + output * p.inputs + g * group;
    const int64_t left = p.inputs - g * group, n = left < group ? left : group;
    Code code{0, 0, 0};
    if (n > 0) code = (p.minima ? code_with_minimum : code_about_zero)(v, n, int(bits), half);
    float check = 0;  // x - x is 0 unless x is not finite
    for (int64_t i = 0; i < n; ++i) check += v[i] - v[i];
    finite &= check == 0 && code.scale - code.scale == 0 && code.minimum - code.minimum == 0;
    for (int64_t i = 0; i < n; ++i) put_code(panel, bits, lane, g * group + i, code(v[i]));
    const int64_t at = (output / kPanelOutputs * groups + g) * kPanelOutputs + lane;
    put_scale(p.scales, at, code.scale, half);
    if (p.minima) put_scale(p.minima, at, code.minimum, half);
  }
  return finite;
}

bool quantize_linear_weight(const LaunchContext&, const QuantizePlan& p) {
  const int64_t panel_bytes = p.format.panel_bytes(p.inputs);
  const int64_t panels = (p.outputs + kPanelOutputs - 1) / kPanelOutputs;
  bool finite = true;
  cpu::parallel_for(panels, 16384 / (panel_bytes + 64) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      auto* panel = static_cast<uint8_t*>(p.codes) + i * panel_bytes;
      const int64_t first = i * kPanelOutputs, last = first + kPanelOutputs;
      for (int64_t j = first; j < last && j < p.outputs; ++j)
        if (!quantize_output(p, j, panel)) __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
      cpu::poll_interrupt();
    }
  });
  return finite;
}

WT_INLINE uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

// Puts one row's codes into its lane of a panel, whose steps are 64 bytes apart.
void pack_row(const PackCodesPlan& p, const uint8_t* row, uint8_t* to) {
  constexpr uint32_t kLow = 0x0f0f0f0f;
  auto put = [&](int64_t step, uint32_t word) { std::memcpy(to + 64 * step, &word, 4); };
  if (p.bits == 8) {
    for (int64_t s = 0; s < p.inputs / 4; ++s) put(s, word_at(row + 4 * s));
  } else if (p.half == 0) {
    for (int64_t s = 0; s < p.inputs / 8; ++s) put(s, word_at(row + 8 * s) | word_at(row + 8 * s + 4) << 4);
  } else {
    const int64_t each = p.half / 8;  // steps of half a block
    for (int64_t s = 0; s < p.inputs / 8; s += 2 * each)
      for (int64_t i = s; i < s + each; ++i, row += 8) {
        const uint32_t first = word_at(row), second = word_at(row + 4);
        put(i, (first & kLow) | (second & kLow) << 4);
        put(i + each, (first >> 4 & kLow) | (second & ~kLow));
      }
  }
}

void pack_linear_codes(const LaunchContext&, const PackCodesPlan& p) {
  const int64_t panel_bytes = p.inputs * p.bits * 2, row_bytes = p.half ? p.inputs / 2 : p.inputs;
  const int64_t panels = (p.outputs + kPanelOutputs - 1) / kPanelOutputs;
  cpu::parallel_for(panels, 65536 / (panel_bytes + 64) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin * kPanelOutputs; j < end * kPanelOutputs && j < p.outputs; ++j)
      pack_row(p, p.codes + j * row_bytes,
               p.packed + j / kPanelOutputs * panel_bytes + j % kPanelOutputs * 4);
    cpu::poll_interrupt();
  });
}

}  // namespace

WT_KERNEL(pack_linear_codes, pack_linear_codes);
WT_KERNEL(quantize_linear_weight, quantize_linear_weight);

}  // namespace warptape::kernels::WARPTAPE_ISA
