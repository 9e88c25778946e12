// Slot "fft" over cuFFT. A tensor is [outer, n, inner] around the transformed dim; lines lie one behind the
// other (inner 1) or side by side (outer 1), and what has both is turned so that they follow each other.
// Plans are kept a device, the least recently used forgotten; their work memory is the caching allocator's.
#include "kernels/fft/fft.h"

#include <memory>
#include <string>

#include "kernels/cuda/common/plan_cache.h"
#include "kernels/cuda/common/relaxed_capture.h"
#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/libraries/cufft.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr size_t kMaxDevices = 64;
constexpr size_t kPlans = 4096;  // PyTorch's default

Slot<ElementwiseFn> copy_slot{"copy"}, mul_slot{"mul"};

void check_fft(cufftResult status, const char* what) {
  if (__builtin_expect(status != 0, 0))
    raise_library_error(std::string("fft: ") + what + " of cuFFT failed with code " + std::to_string(status));
}

struct Plan {
  cufftHandle handle = -1;
  size_t work_bytes = 0;
  std::mutex mutex;  // of the handle, whose stream and work memory change from call to call
  ~Plan() {
    if (handle >= 0) cufftDestroy(handle);
  }
};

// dtypes of both sides, size of the real or complex signal, lines, whether they lie side by side.
using Plans = PlanCache<5, Plan>;

Plans& plans(int device) {
  static std::array<Plans*, kMaxDevices> all{};
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  Plans*& entry = all[static_cast<size_t>(device)];
  if (!entry) entry = new Plans(kPlans);  // never freed: threads may outlive main
  return *entry;
}

FftType library_type(DType t) {
  switch (t) {
    case DType::Float64:
      return FftType::Real64;
    case DType::Complex64:
      return FftType::Complex64;
    case DType::Complex128:
      return FftType::Complex128;
    default:
      return FftType::Real32;
  }
}

std::shared_ptr<Plan> make_plan(DType in, DType out, int64_t in_n, int64_t out_n, int64_t lines,
                                bool across) {
  auto plan = std::make_shared<Plan>();
  RelaxedCapture relaxed;  // tables are allocated
  check_fft(cufftCreate(&plan->handle), "making a plan");
  check_fft(cufftSetAutoAllocation(plan->handle, 0), "taking over memory");
  long long n = is_complex(in) && !is_complex(out) ? out_n : in_n, in_size = in_n, out_size = out_n;
  const long long step = across ? lines : 1;
  check_fft(cufftXtMakePlanMany(plan->handle, 1, &n, &in_size, step, across ? 1 : in_n, library_type(in),
                                &out_size, step, across ? 1 : out_n, library_type(out), lines,
                                &plan->work_bytes, library_type(is_complex(in) ? in : out)),
            "planning");
  return plan;
}

// [outer, n, inner], dense in the order of `dims` from the slowest.
struct Lines {
  char* data;
  DType dtype;
  int64_t sizes[3], strides[3];  // in elements
  int64_t numel() const { return sizes[0] * sizes[1] * sizes[2]; }
  size_t bytes() const { return static_cast<size_t>(numel()) * itemsize(dtype); }
};
Lines lines_of(const View& v, int dim) {
  Lines l{static_cast<char*>(v.data), v.dtype, {1, v.sizes[dim], 1}, {}};
  for (int d = 0; d < dim; ++d) l.sizes[0] *= v.sizes[d];
  for (int d = dim + 1; d < v.ndim; ++d) l.sizes[2] *= v.sizes[d];
  l.strides[2] = 1, l.strides[1] = l.sizes[2], l.strides[0] = l.sizes[1] * l.sizes[2];
  return l;
}
// As `l` in memory of the call; `turned`: with the lines one behind the other.
Lines scratch_like(const LaunchContext& ctx, Lines l, bool turned) {
  l.data = static_cast<char*>(ctx.scratch(l.bytes()));
  if (turned) l.strides[1] = 1, l.strides[2] = l.sizes[1];
  return l;
}

void copy(const LaunchContext& ctx, const Lines& to, const Lines& from) {
  ElementwisePlan p{};
  const auto bytes = static_cast<int64_t>(itemsize(to.dtype));
  for (int d = 0; d < 3; ++d) {
    if (to.sizes[d] == 1) continue;
    p.sizes[p.ndim] = to.sizes[d];
    p.operands[0].strides[p.ndim] = to.strides[d] * bytes;
    p.operands[1].strides[p.ndim++] = from.strides[d] * bytes;
  }
  if (p.ndim == 0) p.sizes[p.ndim++] = 1;
  p.count = 2, p.numel = to.numel(), p.compute = to.dtype;
  p.operands[0].dtype = p.operands[1].dtype = to.dtype;
  p.operands[0].data = to.data, p.operands[1].data = from.data;
  copy_slot(ctx, p);
}

// `number` over all real parts (and imaginary ones) from `data` on, `step` bytes apart.
void with_number(const LaunchContext& ctx, Slot<ElementwiseFn>& slot, char* data, DType real, int64_t count,
                 int64_t step, double number) {
  ElementwisePlan p{};
  p.ndim = 1, p.count = &slot == &copy_slot ? 2 : 3, p.numel = p.sizes[0] = count, p.compute = real;
  for (int k = 0; k + 1 < p.count; ++k) {
    p.operands[k].data = data, p.operands[k].dtype = real;
    p.operands[k].strides[0] = step;
  }
  Operand& last = p.operands[p.count - 1];
  last.data = reinterpret_cast<char*>(&number), last.dtype = DType::Float64, last.host_scalar = true;
  slot(ctx, p);
}

// The first and the last frequency of every line count as real: cuFFT would look at their imaginary parts.
void make_ends_real(const LaunchContext& ctx, const Lines& l, DType real) {
  const int64_t part = static_cast<int64_t>(itemsize(real));
  const int64_t lines = l.sizes[0] * l.sizes[2];
  const int64_t step = (l.strides[1] == 1 ? l.sizes[1] : 1) * 2 * part;  // from line to line
  for (int64_t k : {int64_t{0}, l.sizes[1] - 1})
    with_number(ctx, copy_slot, l.data + 2 * k * l.strides[1] * part + part, real, lines, step, 0);
}

void fft(const LaunchContext& ctx, const View& out, const View& in, int dim, bool forward, double scale) {
  use_device(ctx.device_index);
  const Lines to = lines_of(out, dim), given = lines_of(in, dim);
  const DType real =
      itemsize(out.dtype) == (is_complex(out.dtype) ? 16 : 8) ? DType::Float64 : DType::Float32;
  const bool turned = to.sizes[0] > 1 && to.sizes[2] > 1, to_real = !is_complex(out.dtype);
  // cuFFT writes over what it makes real numbers of, and takes real numbers as pairs.
  const size_t pair = 2 * itemsize(real);
  const bool crooked = reinterpret_cast<uintptr_t>(given.data) % pair != 0;
  Lines from = given, result = to;
  if (turned || to_real || crooked) copy(ctx, from = scratch_like(ctx, given, turned), given);
  if (turned || reinterpret_cast<uintptr_t>(to.data) % pair != 0) result = scratch_like(ctx, to, turned);
  if (to_real) make_ends_real(ctx, from, real);

  const int64_t lines = to.sizes[0] * to.sizes[2];
  const bool across = from.strides[1] != 1;
  const int64_t n = to_real ? to.sizes[1] : given.sizes[1];
  const auto plan =
      plans(ctx.device_index)
          .get({static_cast<int64_t>(in.dtype), static_cast<int64_t>(out.dtype), n, lines, across},
               [&] { return make_plan(in.dtype, out.dtype, given.sizes[1], to.sizes[1], lines, across); });
  void* work = plan->work_bytes ? ctx.scratch(plan->work_bytes) : nullptr;
  {
    std::lock_guard lock(plan->mutex);
    check_fft(cufftSetStream(plan->handle, static_cast<cudaStream_t>(ctx.stream)), "setting the stream");
    if (work) check_fft(cufftSetWorkArea(plan->handle, work), "setting work memory");
    check_fft(cufftXtExec(plan->handle, from.data, result.data, forward ? CUFFT_FORWARD : CUFFT_INVERSE),
              "the transform");
  }
  if (launch_blocking) finish_blocking(ctx, "fft");
  const int64_t numbers = to.numel() * (to_real ? 1 : 2);
  if (scale != 1)
    with_number(ctx, mul_slot, result.data, real, numbers, static_cast<int64_t>(itemsize(real)), scale);
  if (result.data != to.data) copy(ctx, to, result);
}

int64_t fft_plans(const LaunchContext& ctx, FftPlans what, int64_t value) {
  Plans& p = plans(ctx.device_index);
  switch (what) {
    case FftPlans::Size:
      return static_cast<int64_t>(p.size());
    case FftPlans::MaxSize:
      return static_cast<int64_t>(p.capacity());
    case FftPlans::Limit:
      p.set_capacity(static_cast<size_t>(value));
      return value;
  }
  return 0;
}

}  // namespace

WT_KERNEL(fft, fft);
WT_KERNEL(fft_plans, fft_plans);

}  // namespace warptape::kernels::cuda
