// Short-time Fourier transforms.
#include <algorithm>

#include "ops/elementwise/elementwise.h"
#include "ops/factory/factory.h"
#include "ops/fft/fft.h"
#include "ops/index/gather.h"
#include "ops/nn/pad.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using OptDType = std::optional<DType>;
using OptDevice = std::optional<Device>;

// ---- the transforms ------------------------------------------------------------------------------------

// The window in the middle of n_fft places.
Tensor full_window(const char* op, const Tensor& like, const OptTensor& given, int64_t n_fft,
                   std::optional<int64_t> win_length) {
  const int64_t length = win_length.value_or(n_fft);
  WT_CHECK(length > 0 && length <= n_fft, Error, op, ": expected 0 < win_length <= n_fft=", n_fft, ", got ",
           length);
  const DType real = is_complex(like.dtype()) ? real_of(like.dtype()) : like.dtype();
  Tensor w = given ? *given : full(Shape{length}, 1, {real, like.device()});
  WT_CHECK(w.sizes() == Shape{length}, ShapeError, op,
           ": expected a 1D window tensor of size equal to win_length=", length,
           ", but got window with size ", w.sizes());
  const int64_t left = (n_fft - length) / 2, ends[] = {left, n_fft - length - left};
  return length < n_fft ? pad(w, IntList(ends), "constant", std::nullopt) : w;
}

int64_t hop_of(const char* op, std::optional<int64_t> hop_length, int64_t n_fft) {
  const int64_t hop = hop_length.value_or(n_fft / 4);
  WT_CHECK(hop > 0, Error, op, ": expected hop_length > 0, but got hop_length=", hop);
  return hop;
}

// Windows of `size` elements of the last dim, `hop` apart: [..., count, size].
Tensor frames_of(const Tensor& x, int64_t size, int64_t hop) {
  const int64_t count = (x.sizes().back() - size) / hop + 1;
  Tensor index =
      reshape(index_range(count, x.device()) * hop, Shape{count, 1}) + index_range(size, x.device());
  Tensor flat = index_select(x, -1, reshape(index, Shape{count * size}));
  Shape sizes(x.sizes().begin(), x.sizes().end() - 1);
  sizes.push_back(count);
  sizes.push_back(size);
  return reshape(flat, sizes);
}

Tensor stft_impl(const Tensor& input, int64_t n_fft, std::optional<int64_t> hop_length,
                 std::optional<int64_t> win_length, const OptTensor& given_window, bool center,
                 std::string_view pad_mode, bool normalized, std::optional<bool> onesided,
                 std::optional<bool> return_complex) {
  const char* op = "stft";
  WT_CHECK(return_complex || is_complex(input.dtype()), Error, op,
           " requires the return_complex parameter be given for real inputs, and will further require that "
           "return_complex=True in a future PyTorch release.");
  WT_CHECK(input.ndim() == 1 || input.ndim() == 2, ShapeError, op, ": expected a 1D or 2D tensor, but got ",
           input.ndim(), "D");
  if (!given_window) warn("A window was not provided. A rectangular window will be applied.");
  const int64_t hop = hop_of(op, hop_length, n_fft);
  Tensor weights = full_window(op, input, given_window, n_fft, win_length), x = input;
  if (center) {
    const int64_t ends[] = {n_fft / 2, n_fft / 2};
    Tensor rows = pad(reshape(x, Shape{1, -1, x.sizes().back()}), IntList(ends), pad_mode, std::nullopt);
    Shape sizes = x.sizes();
    sizes.back() = rows.sizes().back();
    x = reshape(rows, sizes);
  }
  WT_CHECK(n_fft > 0 && n_fft <= x.sizes().back(), Error, op, ": expected 0 < n_fft <= ", x.sizes().back(),
           ", but got n_fft=", n_fft);
  Tensor frames = frames_of(x, n_fft, hop) * weights;
  const bool half = onesided.value_or(!is_complex(frames.dtype()));
  const std::optional<std::string_view> norm =
      normalized ? std::optional<std::string_view>("ortho") : std::nullopt;
  Tensor out = transpose((half ? rfft : fft)(frames, std::nullopt, -1, norm), -1, -2);
  return return_complex.value_or(true) ? out : view_as_real(contiguous(out));
}

// The signal of which `input` is the stft, [..., frequencies, windows], as nearly as windows allow (Griffin
// and Lim, "Signal Estimation from Modified Short-Time Fourier Transform", 1984, eq. 6).
Tensor istft_impl(const Tensor& input, int64_t n_fft, std::optional<int64_t> hop_length,
                  std::optional<int64_t> win_length, const OptTensor& given_window, bool center,
                  bool normalized, std::optional<bool> onesided, std::optional<int64_t> length,
                  bool return_complex) {
  const char* op = "istft";
  WT_CHECK(is_complex(input.dtype()), Error, op,
           " requires a complex-valued input tensor matching the output from stft");
  WT_CHECK(input.ndim() == 2 || input.ndim() == 3, ShapeError, op,
           ": expected a tensor with 2 or 3 dims, got ", input.sizes());
  const int64_t hop = hop_of(op, hop_length, n_fft), have = input.sizes()[input.ndim() - 2];
  Tensor weights = full_window(op, input, given_window, n_fft, win_length);
  const bool half = onesided.value_or(have != n_fft);
  WT_CHECK(have == (half ? n_fft / 2 + 1 : n_fft), ShapeError, op, ": the frequencies of n_fft=", n_fft,
           " are not as many as the ", have, " of the input");
  WT_CHECK(!half || !return_complex, Error, op,
           ": Cannot have onesided output if window or input is complex");
  const std::optional<std::string_view> norm =
      normalized ? std::optional<std::string_view>("ortho") : std::nullopt;
  // A real signal is made of the frequencies up to n_fft // 2, also where all are given.
  Tensor spectra = transpose(input, -1, -2);
  Tensor frames = return_complex ? ifft(spectra, std::nullopt, -1, norm) : irfft(spectra, n_fft, -1, norm);
  const int64_t count = frames.sizes()[frames.ndim() - 2], all = n_fft + hop * (count - 1);
  Tensor places = reshape(
      reshape(index_range(count, input.device()) * hop, Shape{count, 1}) + index_range(n_fft, input.device()),
      Shape{count * n_fft});
  auto overlap = [&](const Tensor& x) {
    Shape sizes(x.sizes().begin(), x.sizes().end() - 2);
    sizes.push_back(all);
    return index_add(zeros(sizes, options_of(x)), -1, places, flatten(x, -2, -1), 1);
  };
  const int64_t begin = center ? n_fft / 2 : 0, end = length ? begin + *length : all - begin;
  const int64_t kept = std::max<int64_t>(std::min(end, all) - begin, 0);
  Tensor signal = narrow(overlap(frames * weights), -1, begin, kept);
  Tensor cover = narrow(overlap(contiguous(expand(weights * weights, Shape{count, n_fft}))), -1, begin, kept);
  const bool covered =
      cover.device().is_meta() ||
      (cover.numel() > 0 && item(amin(abs(detach(cover)), IntList{}, false)).to_double() >= 1e-11);
  WT_CHECK(covered, Error, op, ": window overlap add min: 1: some element is covered by no window");
  signal = signal / cover;
  const int64_t ends[] = {0, end - all};
  return end > all ? pad(signal, IntList(ends), "constant", std::nullopt) : signal;
}

// ---- the ops -------------------------------------------------------------------------------------------

const Arg kHop{"hop_length", none}, kWin{"win_length", none}, kWindow{"window", none},
    kCenter{"center", true}, kNormalized{"normalized", false}, kOnesided{"onesided", none};
const Op<Tensor(const Tensor&, int64_t, std::optional<int64_t>, std::optional<int64_t>, const OptTensor&,
                bool, std::string_view, bool, std::optional<bool>, std::optional<bool>)>
    stft{"stft",
         stft_impl,
         kFunction | kMethod | kComplex | kFloat32Cpu,
         {"input",
          "n_fft",
          kHop,
          kWin,
          kWindow,
          kCenter,
          {"pad_mode", "reflect"},
          kNormalized,
          kOnesided,
          {"return_complex", none}},
         "[length] or [batch, length] -> [..., frequencies, windows]: the transforms of windows of n_fft "
         "elements that begin hop_length (n_fft // 4) apart, padded by n_fft // 2 at both ends if center."};
const Op<Tensor(const Tensor&, int64_t, std::optional<int64_t>, std::optional<int64_t>, const OptTensor&,
                bool, bool, std::optional<bool>, std::optional<int64_t>, bool)>
    istft{"istft",
          istft_impl,
          kFunction | kMethod | kComplex,
          {"input",
           "n_fft",
           kHop,
           kWin,
           kWindow,
           kCenter,
           kNormalized,
           kOnesided,
           {"length", none},
           {"return_complex", false}},
          "The signal of which input is the stft, as nearly as windows allow."};

}  // namespace
}  // namespace warptape::ops
