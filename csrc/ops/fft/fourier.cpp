// torch.fft: transforms over one, two and any number of dims, frequencies and shifts. `norm` says where the
// factor 1 / n stands: "backward" (the default) at the inverse, "forward" at the other, "ortho" as 1 /
// sqrt(n) at both. A length cuts the input or fills it with zeros first.
#include <algorithm>

#include "ops/elementwise/elementwise.h"
#include "ops/factory/factory.h"
#include "ops/fft/fft.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

enum class Kind : uint8_t { Fft, Ifft, Rfft, Irfft, Hfft, Ihfft };
enum class Norm : uint8_t { Backward, Ortho, Forward };
using OptText = std::optional<std::string_view>;

Norm norm_of(const char* op, const OptText& norm) {
  if (!norm || *norm == "backward") return Norm::Backward;
  WT_CHECK(*norm == "ortho" || *norm == "forward", Error, op, ": Invalid normalization mode: \"", *norm,
           "\"; expected \"backward\", \"ortho\" or \"forward\"");
  return *norm == "ortho" ? Norm::Ortho : Norm::Forward;
}
// How fft_c2c and its kin divide: not at all, by sqrt(n), by n.
int64_t division(Norm norm, bool forward) {
  if (norm == Norm::Ortho) return 1;
  return (norm == Norm::Forward) == forward ? 2 : 0;
}
Norm opposite(Norm norm) {
  return norm == Norm::Ortho ? norm : norm == Norm::Forward ? Norm::Backward : Norm::Forward;
}

// In a dtype that the transform takes: integers become the default floating dtype.
Tensor input_of(const char* op, const Tensor& given, bool complex) {
  const bool floats = is_floating(given.dtype()) || is_complex(given.dtype());
  Tensor x = floats ? given : cast(given, rank_context().default_dtype);
  WT_CHECK(x.dtype() != DType::Float16 && x.dtype() != DType::BFloat16, DtypeError, op,
           ": unsupported dtype ", x.dtype(), "; convert the tensor with .float()");
  WT_CHECK(complex || !is_complex(x.dtype()), DtypeError, op, ": ", op,
           " expects a real input tensor, but got ", x.dtype());
  if (!complex || is_complex(x.dtype())) return x;
  return cast(x, x.dtype() == DType::Float64 ? DType::Complex128 : DType::Complex64);
}

void check_length(const char* op, int64_t n) {
  WT_CHECK(n >= 1, ShapeError, op, ": Invalid number of data points (", n, ") specified");
}

// The dims of a transform, and the lengths asked for; kNoItem where it is the input's.
struct Dims {
  Shape dims, lengths;
};

// x cut, or filled up with zeros at the end.
Tensor resized(const char* op, Tensor x, const Dims& d) {
  for (size_t i = 0; i < d.dims.size(); ++i) {
    const int64_t dim = d.dims[i], have = x.sizes()[dim], n = d.lengths[i] == kNoItem ? have : d.lengths[i];
    check_length(op, n);
    if (n < have) x = narrow(x, dim, 0, n);
    if (n <= have) continue;
    Shape rest = x.sizes();
    rest[dim] = n - have;
    x = cat(std::vector<Tensor>{x, zeros(rest, options_of(x))}, dim);
  }
  return x;
}

Tensor whole(const char* op, const Tensor& given, const Dims& d, Norm norm, bool forward) {
  Tensor x = resized(op, input_of(op, given, true), d);
  return d.dims.empty() ? clone(x) : fft_c2c(x, d.dims, division(norm, forward), forward);
}
void check_dims(const char* op, const Dims& d) {
  WT_CHECK(!d.dims.empty(), ShapeError, op, " must transform at least one axis");
}
Tensor to_half(const char* op, const Tensor& given, const Dims& d, Norm norm) {
  Tensor x = input_of(op, given, false);
  check_dims(op, d);
  return fft_r2c(resized(op, x, d), d.dims, division(norm, true), true);
}
Tensor from_half(const char* op, const Tensor& x, Dims d, Norm norm) {
  check_dims(op, d);
  int64_t& last = d.lengths.back();
  const int64_t n = last == kNoItem ? 2 * (x.sizes()[d.dims.back()] - 1) : last;
  check_length(op, n);
  last = n / 2 + 1;
  return fft_c2r(resized(op, x, d), d.dims, division(norm, false), n);
}

Tensor transform(Kind kind, const char* op, const Tensor& x, const Dims& d, Norm norm) {
  switch (kind) {
    case Kind::Fft:
      return whole(op, x, d, norm, true);
    case Kind::Ifft:
      return whole(op, x, d, norm, false);
    case Kind::Rfft:
      return to_half(op, x, d, norm);
    case Kind::Irfft:
      return from_half(op, input_of(op, x, true), d, norm);
    case Kind::Hfft:
      return from_half(op, conj(input_of(op, x, true)), d, opposite(norm));
    case Kind::Ihfft:
      return conj(to_half(op, x, d, opposite(norm)));
  }
  return x;
}

Dims dims_of(const char* op, const Tensor& x, const std::optional<IntList>& s,
             const std::optional<IntList>& dim) {
  const auto nd = static_cast<size_t>(x.ndim());
  WT_CHECK(!s || s->size() <= nd, ShapeError, op, ": Got shape with ", s ? s->size() : 0,
           " values but input tensor only has ", nd, " dimensions.");
  Dims d;
  WT_CHECK(!dim || dim->empty() || nd > 0, IndexError, op, ": Dimension specified as ", dim->front(),
           " but tensor has no dimensions");
  if (dim)
    for (int64_t each : *dim) d.dims.push_back(wrap_dim(each, x.ndim(), op));
  else
    for (size_t i = s ? nd - s->size() : 0; i < nd; ++i) d.dims.push_back(static_cast<int64_t>(i));
  Shape sorted = d.dims;
  std::ranges::sort(sorted);
  WT_CHECK(std::ranges::adjacent_find(sorted) == sorted.end(), ShapeError, op, ": FFT dims must be unique");
  WT_CHECK(!s || s->size() == d.dims.size(), ShapeError, op,
           ": When given, dim and shape arguments must have the same length");
  for (size_t i = 0; i < d.dims.size(); ++i) d.lengths.push_back(!s || (*s)[i] == -1 ? kNoItem : (*s)[i]);
  return d;
}

constexpr const char* kOne[] = {"fft", "ifft", "rfft", "irfft", "hfft", "ihfft"};
constexpr const char* kTwo[] = {"fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2"};
constexpr const char* kMany[] = {"fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"};

template <Kind K>
Tensor over_one(const Tensor& x, std::optional<int64_t> n, int64_t dim, OptText norm) {
  const char* op = kOne[static_cast<int>(K)];
  WT_CHECK(x.ndim() > 0, IndexError, op, ": Dimension specified as ", dim, " but tensor has no dimensions");
  return transform(K, op, x, {{wrap_dim(dim, x.ndim(), op)}, {n.value_or(kNoItem)}}, norm_of(op, norm));
}
template <Kind K, bool kTwoDims>
Tensor over_many(const Tensor& x, std::optional<IntList> s, std::optional<IntList> dim, OptText norm) {
  const char* op = (kTwoDims ? kTwo : kMany)[static_cast<int>(K)];
  return transform(K, op, x, dims_of(op, x, s, dim), norm_of(op, norm));
}

// ---- frequencies ---------------------------------------------------------------------------------------

template <class F>
Tensor frequencies(int64_t n, double d, std::optional<DType> dtype, std::optional<Device> device,
                   bool needs_grad, int64_t count, F&& at) {
  WT_CHECK(n != 0, Error, "fftfreq: ZeroDivisionError: n is 0");
  WT_CHECK(count >= 0, ShapeError, "fftfreq: expected n of at least 1, got ", n);
  Tensor out = empty(Shape{count}, {DType::Float64, {}});
  for (int64_t i = 0; i < count; ++i)
    out.data_as<double>()[i] = static_cast<double>(at(i)) / (static_cast<double>(n) * d);
  out = to(out, device ? *device : default_device(), dtype.value_or(rank_context().default_dtype), false,
           false);
  if (needs_grad) set_requires_grad(out, true);
  return out;
}
Tensor fftfreq_impl(int64_t n, double d, std::optional<DType> dtype, std::optional<Device> device,
                    bool grad) {
  return frequencies(n, d, dtype, device, grad, n, [n](int64_t i) { return i > (n - 1) / 2 ? i - n : i; });
}
Tensor rfftfreq_impl(int64_t n, double d, std::optional<DType> dtype, std::optional<Device> device,
                     bool grad) {
  return frequencies(n, d, dtype, device, grad, n / 2 + 1, [](int64_t i) { return i; });
}

// The last k elements of each dim go first, k being half of them, rounded down, or up for the inverse.
template <bool kInverse>
Tensor shifted(const Tensor& given, std::optional<IntList> dim) {
  Shape all;
  for (int64_t d = 0; d < given.ndim(); ++d) all.push_back(d);
  Tensor x = given;
  for (int64_t d : dim ? wrap_dims(*dim, x.ndim(), "fftshift") : all) {
    const int64_t n = x.sizes()[d], k = (n + kInverse) / 2;
    x = cat(std::vector<Tensor>{narrow(x, d, n - k, k), narrow(x, d, 0, n - k)}, d);
  }
  return x.same(given) ? clone(given) : x;
}

// ---- the ops -------------------------------------------------------------------------------------------

constexpr OpFacts kPlace = kFFT | kOut | kComplex | kFloat32Cpu;
const Arg kN{"n", none}, kS{"s", none}, kDim = Arg::integer("dim", -1), kLastTwo{"dim", {-2, -1}},
                                        kDims{"dim", none}, kNorm{"norm", none};
using ManyOp = Op<Tensor(const Tensor&, std::optional<IntList>, std::optional<IntList>, OptText)>;
#define WT_FOURIER(NAME, KIND, MEANING)                 \
  const ManyOp NAME##2 {#NAME "2",                      \
                        over_many<Kind::KIND, true>,    \
                        kPlace,                         \
                        {"input", kS, kLastTwo, kNorm}, \
                        MEANING                         \
                        " over two "                    \
                        "dims."},                       \
      NAME##n{#NAME "n",                                \
              over_many<Kind::KIND, false>,             \
              kPlace,                                   \
              {"input", kS, kDims, kNorm},              \
              MEANING " over dims."}
#define WT_FFT_MEANING "X[k] = sum over j of x[j] exp(-2 pi i j k / n), complex,"
#define WT_IFFT_MEANING "The inverse of fft, complex,"
#define WT_RFFT_MEANING "fft of a real tensor, of the last dim only the frequencies 0 to n // 2,"
#define WT_IRFFT_MEANING "The inverse of rfft, real; the last length is 2 * (size - 1) unless given;"
#define WT_HFFT_MEANING "fft of a signal of which the last dim has the half that conjugates repeat; real;"
#define WT_IHFFT_MEANING "The inverse of hfft"
WT_FOURIER(fft, Fft, WT_FFT_MEANING);
WT_FOURIER(ifft, Ifft, WT_IFFT_MEANING);
WT_FOURIER(rfft, Rfft, WT_RFFT_MEANING);
WT_FOURIER(irfft, Irfft, WT_IRFFT_MEANING);
WT_FOURIER(hfft, Hfft, WT_HFFT_MEANING);
WT_FOURIER(ihfft, Ihfft, WT_IHFFT_MEANING);
const FourierOp hfft{
    "hfft", over_one<Kind::Hfft>, kPlace, {"input", kN, kDim, kNorm}, WT_HFFT_MEANING " over one dim."},
    ihfft{"ihfft",
          over_one<Kind::Ihfft>,
          kPlace,
          {"input", kN, kDim, kNorm},
          WT_IHFFT_MEANING " over one dim."};

using FrequencyOp = Op<Tensor(int64_t, double, std::optional<DType>, std::optional<Device>, bool)>;
const FrequencyOp fftfreq{"fftfreq",
                          fftfreq_impl,
                          kFFT | kOut,
                          {"n",
                           {"d", 1.0},
                           {"dtype", none, kKeywordOnly},
                           {"device", none, kKeywordOnly},
                           {"requires_grad", false, kKeywordOnly}},
                          "The frequencies of fft's results, in cycles per unit of the sample spacing d."},
    rfftfreq{"rfftfreq",
             rfftfreq_impl,
             kFFT | kOut,
             {"n",
              {"d", 1.0},
              {"dtype", none, kKeywordOnly},
              {"device", none, kKeywordOnly},
              {"requires_grad", false, kKeywordOnly}},
             "The frequencies of rfft's results, in cycles per unit of the sample spacing d."};
const Op<Tensor(const Tensor&, std::optional<IntList>)> fftshift{
    "fftshift",
    shifted<false>,
    kFFT | kComplex,
    {"input", kDims},
    "The frequency 0 moved to the middle of the dims given, or of all."},
    ifftshift{"ifftshift", shifted<true>, kFFT | kComplex, {"input", kDims}, "The inverse of fftshift."};

}  // namespace

decltype(fft) fft{
    "fft", over_one<Kind::Fft>, kPlace, {"input", kN, kDim, kNorm}, WT_FFT_MEANING " over one dim."};
decltype(ifft) ifft{
    "ifft", over_one<Kind::Ifft>, kPlace, {"input", kN, kDim, kNorm}, WT_IFFT_MEANING " over one dim."};
decltype(rfft) rfft{
    "rfft", over_one<Kind::Rfft>, kPlace, {"input", kN, kDim, kNorm}, WT_RFFT_MEANING " over one dim."};
decltype(irfft) irfft{
    "irfft", over_one<Kind::Irfft>, kPlace, {"input", kN, kDim, kNorm}, WT_IRFFT_MEANING " over one dim."};

}  // namespace warptape::ops
