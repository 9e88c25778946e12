// Plans of cuDNN for the convolutions of kernels/cuda/conv/conv_graph.h, made for a device that need not be
// there: from its properties as cuDNN serialises them.
//   conv_plans properties FILE   writes those of device 0, which must be there
//   conv_plans plans FILE        makes plans for the device of the file; a line for each: the case, then what
//                                cuDNN chose and its workspace in bytes, or why it has none
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "kernels/cuda/conv/conv_graph.h"

// What a plugin has and this program does not: devices, switches, errors of calls on streams.
namespace warptape::kernels::cuda {
bool launch_blocking = false;
void raise_library_error(const std::string& text) { throw std::runtime_error(text); }
std::vector<std::string> package_folders() { return {}; }
void raise_error(cudaError_t error, const char* op) {
  throw std::runtime_error(std::string(op) + ": " + cudaGetErrorString(error));
}
void use_device(int) {}
void finish_blocking(const LaunchContext&, const char*) {}
}  // namespace warptape::kernels::cuda

// The frontend asks the runtime for the current device and its compute capability on its way to a plan; a
// machine without a GPU has none, so that these calls are linked to here. 900 is 9.0.
static int device_version = 0;
extern "C" cudaError_t __wrap_cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
extern "C" cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  *value = what == cudaDevAttrComputeCapabilityMajor ? device_version / 100 : device_version / 10 % 10;
  return what == cudaDevAttrComputeCapabilityMajor || what == cudaDevAttrComputeCapabilityMinor
             ? cudaSuccess
             : cudaErrorInvalidValue;
}

namespace {

using namespace warptape;
using namespace warptape::kernels;
using namespace warptape::kernels::cuda;
using Properties = std::shared_ptr<fe::DeviceProperties>;

void need(fe::error_t error, const char* what) {
  if (error.is_bad()) throw std::runtime_error(std::string(what) + ": " + error.get_message());
}

void write_properties(const char* file) {
  fe::DeviceProperties device;
  need(device.set_device_id(0).build(), "the device's properties");
  std::vector<uint8_t> bytes;
  need(device.serialize(bytes), "serialising them");
  while (!bytes.empty() && bytes.back() == 0) bytes.pop_back();
  std::ofstream(file).write(reinterpret_cast<const char*>(bytes.data()),
                            static_cast<std::streamsize>(bytes.size()));
}

Properties read_properties(const char* file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (bytes.empty()) throw std::runtime_error(std::string(file) + " has no properties");
  const std::string text(bytes.begin(), bytes.end()), key = "\"deviceVer\":";
  const size_t at = text.find(key);
  if (at == std::string::npos) throw std::runtime_error(std::string(file) + " names no deviceVer");
  device_version = std::atoi(text.c_str() + at + key.size());
  bytes.push_back(0);
  auto device = std::make_shared<fe::DeviceProperties>();
  need(device->deserialize(bytes), file);
  return device;
}

struct Case {
  const char* name;
  int64_t batch, groups, in_channels, out_channels, in, kernel, stride, padding, dilation;
};
// Layers of ResNet-50, MobileNet and GPT-like stems, and what the op table asks for.
constexpr Case kCases[] = {
    {"stem 7x7", 64, 1, 3, 64, 224, 7, 2, 3, 1},      {"3x3", 64, 1, 64, 64, 56, 3, 1, 1, 1},
    {"3x3 strided", 64, 1, 128, 128, 56, 3, 2, 1, 1}, {"1x1", 64, 1, 256, 64, 56, 1, 1, 0, 1},
    {"1x1 strided", 64, 1, 256, 512, 56, 1, 2, 0, 1}, {"dilated", 8, 1, 64, 64, 28, 3, 1, 2, 2},
    {"grouped", 32, 32, 128, 128, 28, 3, 1, 1, 1},    {"depthwise", 32, 96, 96, 96, 56, 3, 1, 1, 1},
    {"odd channels", 2, 1, 5, 7, 9, 3, 1, 1, 1},      {"no padding", 2, 1, 8, 8, 9, 3, 2, 0, 1},
    {"one image", 1, 1, 1, 1, 5, 5, 1, 0, 1},
};

ConvPlan plan_of(const Case& c, DType dtype) {
  ConvPlan p{};
  p.dtype = dtype;
  p.batch = c.batch, p.in_channels = c.in_channels, p.out_channels = c.out_channels, p.groups = c.groups;
  for (int d = 0; d < 2; ++d) {
    p.in[d] = c.in, p.kernel[d] = c.kernel, p.stride[d] = c.stride;
    p.padding[d] = c.padding, p.dilation[d] = c.dilation;
    p.out[d] = (c.in + 2 * c.padding - c.dilation * (c.kernel - 1) - 1) / c.stride + 1;
  }
  return p;
}

void make_plans(const char* file) {
  const Properties device = read_properties(file);
  constexpr std::pair<DType, const char*> dtypes[] = {{DType::BFloat16, "bfloat16"},
                                                      {DType::Float16, "float16"},
                                                      {DType::Float32, "float32"},
                                                      {DType::Float64, "float64"}};
  constexpr std::pair<Pass, const char*> passes[] = {
      {Pass::Forward, "forward"}, {Pass::Input, "input"}, {Pass::Weight, "weight"}};
  constexpr std::pair<ConvLayout, const char*> layouts[] = {{ConvLayout::ChannelsFirst, "rows"},
                                                            {ConvLayout::ChannelsLast, "channels last"}};
  for (const Case& c : kCases)
    for (const auto& [dtype, dtype_name] : dtypes)
      for (const auto& [layout, layout_name] : layouts)
        for (const auto& [pass, pass_name] : passes)
          for (const bool exact : {false, true}) {  // deterministic, float32 without TF32
            const GraphRules rules{exact, !exact};
            const ConvPlan p = plan_of(c, dtype);
            GraphPlan plan;
            plan.graph.set_device_properties(device);
            fill_plan(plan, nullptr, p.dtype, rules,
                      [&](fe::graph::Graph& g) { describe(g, pass, p, layout); });
            std::string chosen;
            if (plan.refusal.empty()) need(plan.graph.get_plan_name(chosen), "the plan's name");
            std::printf("%s|%s|%s|%s|%s|%s|%s|%lld\n", c.name, dtype_name, layout_name, pass_name,
                        exact ? "exact" : "any", plan.refusal.empty() ? "plan" : "none",
                        plan.refusal.empty() ? chosen.c_str() : plan.refusal.c_str(),
                        static_cast<long long>(plan.workspace));
            std::fflush(stdout);
          }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  try {
    if (what == "properties")
      write_properties(argv[2]);
    else if (what == "plans")
      make_plans(argv[2]);
    else
      return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
