// An extension as a user of PyTorch writes it: a recurrent cell, a RoI align, and one function per part of
// the API.
#include <torch/extension.h>

#include <vector>

namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- a recurrent cell of three gates: forward and backward with ops ----

// elu'(z) for alpha 1
Tensor elu_slope(const Tensor& z) { return (z > 0).type_as(z) + (z <= 0).type_as(z) * z.exp(); }

std::vector<Tensor> cell_forward(Tensor input, Tensor weights, Tensor bias, Tensor old_h, Tensor old_cell) {
  TORCH_CHECK(input.dim() == 2, "input must be [batch, features], got ", input.sizes());
  auto x = torch::cat({old_h, input}, /*dim=*/1);
  auto gates = torch::addmm(bias, x, weights.transpose(0, 1)).chunk(3, /*dim=*/1);
  auto in = torch::sigmoid(gates[0]), out = torch::sigmoid(gates[1]);
  auto candidate = torch::elu(gates[2], /*alpha=*/1.0);
  auto cell = old_cell + candidate * in;
  auto h = torch::tanh(cell) * out;
  return {h, cell, in, out, candidate, x, torch::cat({gates[0], gates[1], gates[2]}, 1)};
}

std::vector<Tensor> cell_backward(Tensor grad_h, Tensor grad_cell, Tensor cell, Tensor in, Tensor out,
                                  Tensor candidate, Tensor x, Tensor gates, Tensor weights) {
  auto d_out = torch::tanh(cell) * grad_h;
  auto d_cell = (1 - cell.tanh().pow(2)) * out * grad_h + grad_cell;
  auto parts = gates.chunk(3, 1);
  auto d_gates = torch::cat(
      {candidate * d_cell * in * (1 - in), d_out * out * (1 - out), in * d_cell * elu_slope(parts[2])},
      /*dim=*/1);
  auto d_x = d_gates.mm(weights);
  const auto size = grad_h.size(1);
  return {d_x.slice(/*dim=*/1, size), d_gates.t().mm(x), d_gates.sum(/*dim=*/0, /*keepdim=*/true),
          d_x.slice(1, 0, size), d_cell};
}

struct Cell : public torch::autograd::Function<Cell> {
  static variable_list forward(AutogradContext* ctx, Tensor input, Tensor weights, Tensor bias, Tensor h,
                               Tensor c) {
    auto all = cell_forward(input, weights, bias, h, c);
    ctx->save_for_backward({all[1], all[2], all[3], all[4], all[5], all[6], weights});
    return {all[0], all[1]};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto s = ctx->get_saved_variables();
    return cell_backward(grads[0], grads[1], s[0], s[1], s[2], s[3], s[4], s[5], s[6]);
  }
};

std::vector<Tensor> cell(Tensor input, Tensor weights, Tensor bias, Tensor h, Tensor c) {
  return Cell::apply(input, weights, bias, h, c);
}

// ---- RoI align, one sample per bin, with accessors ----

template <class scalar_t, class F>
void each_sample(torch::TensorAccessor<scalar_t, 2> rois, int64_t r, int64_t rows, int64_t columns,
                 double scale, int64_t height, int64_t width, F&& f) {
  const double y0 = rois[r][2] * scale, x0 = rois[r][1] * scale;
  const double bin_h = (rois[r][4] * scale - y0) / rows, bin_w = (rois[r][3] * scale - x0) / columns;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const double y = std::min(std::max(y0 + (i + 0.5) * bin_h, 0.0), height - 1.0);
      const double x = std::min(std::max(x0 + (j + 0.5) * bin_w, 0.0), width - 1.0);
      const auto top = static_cast<int64_t>(y), left = static_cast<int64_t>(x);
      for (int64_t a = 0; a < 2; ++a)
        for (int64_t b = 0; b < 2; ++b)
          f(i, j, std::min(top + a, height - 1), std::min(left + b, width - 1),
            static_cast<scalar_t>((a ? y - top : 1 - (y - top)) * (b ? x - left : 1 - (x - left))));
    }
}

Tensor roi_forward(const Tensor& x, const Tensor& rois, int64_t rows, int64_t columns, double scale) {
  TORCH_CHECK(x.dim() == 4 && rois.dim() == 2 && rois.size(1) == 5, "expected [N, C, H, W] and [K, 5]");
  auto out = at::zeros({rois.size(0), x.size(1), rows, columns}, x.options());
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "roi_forward", [&] {
    const auto in = x.accessor<scalar_t, 4>();
    const auto boxes = rois.accessor<scalar_t, 2>();
    auto result = out.accessor<scalar_t, 4>();
    at::parallel_for(0, rois.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        each_sample(boxes, r, rows, columns, scale, x.size(2), x.size(3),
                    [&](int64_t i, int64_t j, int64_t y, int64_t xx, scalar_t w) {
                      for (int64_t c = 0; c < x.size(1); ++c)
                        result[r][c][i][j] += w * in[static_cast<int64_t>(boxes[r][0])][c][y][xx];
                    });
    });
  });
  return out;
}

Tensor roi_backward(const Tensor& grad, const Tensor& rois, at::IntArrayRef sizes, double scale) {
  auto out = at::zeros(sizes, grad.options());
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(grad.scalar_type(), "roi_backward", [&] {
    const auto g = grad.accessor<scalar_t, 4>();
    const auto boxes = rois.accessor<scalar_t, 2>();
    auto result = out.accessor<scalar_t, 4>();
    for (int64_t r = 0; r < rois.size(0); ++r)
      each_sample(boxes, r, grad.size(2), grad.size(3), scale, sizes[2], sizes[3],
                  [&](int64_t i, int64_t j, int64_t y, int64_t x, scalar_t w) {
                    for (int64_t c = 0; c < sizes[1]; ++c)
                      result[static_cast<int64_t>(boxes[r][0])][c][y][x] += w * g[r][c][i][j];
                  });
  });
  return out;
}

// ---- parts of autograd::Function ----

struct Doubled : public torch::autograd::Function<Doubled> {  // in place
  static Tensor forward(AutogradContext* ctx, Tensor x) {
    ctx->mark_dirty({x});
    return x.mul_(2);
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0] * 2}; }
};

struct Parts : public torch::autograd::Function<Parts> {  // a list, a number, an optional tensor
  static variable_list forward(AutogradContext* ctx, std::vector<Tensor> xs, double by,
                               c10::optional<Tensor> bias) {
    ctx->saved_data["by"] = by;
    ctx->saved_data["count"] = static_cast<int64_t>(xs.size());
    ctx->saved_data["needs"] = ctx->needs_input_grad(0);
    auto sum = at::zeros_like(xs[0]);
    for (const auto& x : xs) sum += x * by;
    if (bias) sum += *bias;
    auto largest = sum.argmax();
    ctx->mark_non_differentiable({largest});
    return {sum, largest, xs[0]};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const double by = ctx->saved_data["by"].toDouble();
    TORCH_CHECK(ctx->saved_data["needs"].toBool());
    variable_list out;
    for (int64_t i = 0; i < ctx->saved_data["count"].toInt(); ++i) out.push_back(grads[0] * by);
    out[0] = out[0] + grads[2];
    out.push_back(Tensor());
    out.push_back(grads[0]);
    return out;
  }
};

struct WrongCount : public torch::autograd::Function<WrongCount> {
  static Tensor forward(AutogradContext*, Tensor x) { return x.clone(); }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], grads[0]}; }
};

// ---- tensors ----

std::vector<Tensor> made(const Tensor& like) {
  static std::vector<float> memory{1, 2, 3, 4, 5, 6};
  using torch::indexing::Slice;
  auto blob = torch::from_blob(memory.data(), {2, 3}, torch::kFloat32);
  auto filled = torch::full({2, 2}, 7, torch::dtype(torch::kInt64));
  filled[0] = torch::tensor({1, 2});
  filled.index_put_({1, Slice()}, 5);
  return {torch::ones({2}, like.options()),
          blob.clone(),
          blob.index({Slice(), Slice(0, 3, 2)}),
          blob.index({torch::tensor({1, 0}), "..."}),
          filled,
          torch::arange(0, 6, 2),
          (1 / blob + 2 - blob) * blob,
          torch::where(blob > 3, blob, torch::zeros_like(blob)),
          std::get<1>(blob.max(1)),
          torch::linalg_norm(blob, c10::optional<torch::Scalar>(), c10::nullopt),
          blob.to(torch::kHalf).to(torch::kCPU, torch::kDouble)};
}

bool freed = false;
Tensor with_deleter() {
  auto* data = new double[2]{3, 4};
  return torch::from_blob(
      data, {2}, [](void* p) { delete[] static_cast<double*>(p), freed = true; }, torch::kDouble);
}

std::string described(const Tensor& t, c10::optional<Tensor> other, at::ScalarType dtype, at::Device device,
                      at::Scalar number, std::vector<int64_t> sizes) {
  return c10::str(t.sizes(), t.strides(), t.dtype(), t.device(), t.is_contiguous(), t.numel(),
                  t.requires_grad(), other.has_value(), dtype, device, number, at::IntArrayRef(sizes));
}

// Narrowed by C++, and widened again; the last: what compound and mixed operators give.
std::vector<Tensor> narrowed(const Tensor& x, at::ScalarType dtype) {
  auto narrow = torch::empty(x.sizes(), x.options().dtype(dtype)), mixed = torch::empty_like(narrow);
  auto wide = torch::empty_like(x);
  AT_DISPATCH_REDUCED_FLOATING_TYPES(dtype, "narrowed", [&] {
    for (int64_t i = 0; i < x.numel(); ++i) {
      scalar_t v = x.data_ptr<float>()[i];
      narrow.data_ptr<scalar_t>()[i] = v;
      wide.data_ptr<float>()[i] = v;
      v += 1;
      mixed.data_ptr<scalar_t>()[i] = v * v - 3;
    }
  });
  return {narrow, wide, mixed};
}

// Whether the runtime has an op of that name.
bool is_op(const std::string& name) {
  try {
    const wtx_value wrong = wtx::of_list(WTX_KIND_STRING, "", 0);
    wtx::call_boxed(name.c_str(), &wrong, 1);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const c10::Error& e) {
    return std::string(e.what()).find("there is no op") == std::string::npos;
  }
  return true;
}

int64_t threads_sum(int64_t n) {
  return at::parallel_reduce(
      int64_t{0}, n, 7, int64_t{0},
      [](int64_t begin, int64_t end, int64_t sum) {
        for (int64_t i = begin; i < end; ++i) sum += i;
        return sum;
      },
      [](int64_t a, int64_t b) { return a + b; });
}

void raise(const std::string& kind) {
  if (kind == "index") TORCH_CHECK_INDEX(false, "an index");
  if (kind == "value") TORCH_CHECK_VALUE(false, "a value");
  if (kind == "type") TORCH_CHECK_TYPE(false, "a type");
  if (kind == "missing") TORCH_CHECK_NOT_IMPLEMENTED(false, "no kernel");
  if (kind == "thread")
    at::parallel_for(0, 100, 1, [](int64_t, int64_t) { TORCH_CHECK(false, "in a thread"); });
  if (kind == "shapes") torch::ones({2, 3}).mm(torch::ones({2, 3}));
  if (kind == "undefined") Tensor().sizes();
  if (kind == "dtype") torch::ones({2}).data_ptr<double>();
  if (kind == "dispatch") AT_DISPATCH_FLOATING_TYPES(torch::kInt, "dispatched", [&] {});
  TORCH_WARN("kind is ", kind);
}

}  // namespace

// ---- ops ----

at::Tensor shifted(const at::Tensor& x, double by, c10::string_view mode, at::IntArrayRef dims) {
  return (mode == "up" ? x + by : x - by).sum(dims, true);
}
at::Tensor shifted_twice(const at::Tensor& x) {
  static auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("testext::shifted", "").typed<decltype(shifted)>();
  return op.call(op.call(x, 1, "up", {0}), 2, "up", {1});
}

TORCH_LIBRARY(testext, m) {
  m.def("shifted(Tensor x, float by=1.5, *, str mode=\"up\", int[] dims=[0]) -> Tensor");
  m.def("shifted_twice(Tensor x) -> Tensor", &shifted_twice);
  m.def("several(Tensor[] xs, Tensor? y) -> (Tensor, int, float[])");
  m.def("fill_(Tensor(a!) x, Scalar value) -> ()");
  m.def("over.one(Tensor x) -> Tensor");
  m.def("over.two(Tensor x, Tensor y) -> Tensor");
  m.def("cell(Tensor input, Tensor weights, Tensor bias, Tensor h, Tensor c) -> Tensor[]");
  m.def("plain", [](const at::Tensor& x, int64_t n) { return x * n; });
}
TORCH_LIBRARY_IMPL(testext, CPU, m) {
  m.impl("shifted", TORCH_FN(shifted));
  m.impl("several", [](std::vector<at::Tensor> xs, const c10::optional<at::Tensor>& y) {
    return std::make_tuple(xs[0] + xs[1], static_cast<int64_t>(y.has_value()), std::vector<double>{0.5, 2});
  });
  m.impl("fill_", [](at::Tensor& x, at::Scalar value) { x.fill_(value); });
  m.impl("over.one", [](at::Tensor x) { return x + 1; });
  m.impl("over.two", [](at::Tensor x, at::Tensor y) { return x + y; });
}
TORCH_LIBRARY_IMPL(testext, Autograd, m) { m.impl("cell", &cell); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("cell", &cell, "one step");
  m.def("roi_forward", &roi_forward);
  m.def("roi_backward", &roi_backward);
  m.def("doubled", [](Tensor x) { return Doubled::apply(x); });
  m.def("parts", [](std::vector<Tensor> xs, double by, c10::optional<Tensor> bias) {
    return Parts::apply(xs, by, bias);
  });
  m.def("wrong_count", [](Tensor x) { return WrongCount::apply(x); });
  m.def("made", &made);
  m.def("with_deleter", &with_deleter);
  m.def("was_freed", [] { return freed; });
  m.def("described", &described);
  m.def("narrowed", &narrowed);
  m.def("is_op", &is_op);
  m.def("threads_sum", &threads_sum);
  m.def("raise_error", &raise);
  m.def("undefined", [] { return Tensor(); });
  m.def("added", [](std::vector<Tensor> xs) {
    return at::_foreach_add(xs,
                            std::vector<at::Scalar>{at::Scalar(true), 2, 0.5, c10::complex<double>(0, 1)});
  });
  m.def("gradient", [](Tensor x) {
    auto y = (x * x).sum();
    y.backward();
    return std::make_tuple(x.grad(), torch::autograd::grad({(x * x).sum()}, {x})[0],
                           at::GradMode::is_enabled());
  });
}
