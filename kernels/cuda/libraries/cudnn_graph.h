// What convolution and attention share of cuDNN's graph API: a handle a device, a graph with its chosen plan,
// running it with memory of the context.
#pragma once

// No graph is stored as JSON.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "kernels/cuda/common/plan_cache.h"
#include "kernels/cuda/common/relaxed_capture.h"
#include "kernels/cuda/common/runtime.h"

namespace warptape::kernels::cuda {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// A handle may be used by one thread at a time: who holds the mutex.
struct CudnnDevice {
  cudnnHandle_t handle = nullptr;
  std::mutex mutex;
};

// Of a device, which becomes current; throws where cuDNN is missing.
inline CudnnDevice& cudnn_device(int index) {
  constexpr size_t kMaxDevices = 64;
  static auto* all = new std::array<CudnnDevice, kMaxDevices>;  // never freed: threads may outlive main
  use_device(index);
  CudnnDevice& device = (*all)[static_cast<size_t>(index)];
  std::lock_guard lock(device.mutex);
  if (!device.handle) {
    RelaxedCapture relaxed;
    if (const cudnnStatus_t status = cudnnCreate(&device.handle); status != CUDNN_STATUS_SUCCESS) {
      device.handle = nullptr;
      raise_library_error(std::string("cuDNN: opening failed: ") + cudnnGetErrorString(status));
    }
  }
  return device;
}

struct GraphPlan {
  fe::graph::Graph graph;
  int64_t workspace = 0;
  std::string refusal;  // why cuDNN does not run it; empty when it does
};

struct GraphRules {
  bool deterministic = true;
  bool allow_tf32 = true;  // of Float32 values
};

inline fe::DataType_t graph_type(DType dtype) {
  switch (dtype) {
    case DType::Float16:
      return fe::DataType_t::HALF;
    case DType::BFloat16:
      return fe::DataType_t::BFLOAT16;
    case DType::Float64:
      return fe::DataType_t::DOUBLE;
    default:
      return fe::DataType_t::FLOAT;
  }
}

// Lets cuDNN's heuristics choose among the engines that keep the rules; the reason where none is left.
// Without a handle the graph has the properties of its device.
inline std::string choose_plan(GraphPlan& plan, cudnnHandle_t handle, DType dtype, const GraphRules& rules) {
  fe::graph::Graph& g = plan.graph;
  auto failed = [](fe::error_t e) { return e.is_good() ? std::string() : e.get_message() + " "; };
  std::string why = failed(g.validate());
  if (why.empty()) why = failed(g.build_operation_graph(handle));
  if (why.empty()) why = failed(g.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}));
  if (!why.empty()) return why;
  std::vector<fe::NumericalNote_t> refused;
  if (rules.deterministic) refused.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
  if (dtype == DType::Float32 && !rules.allow_tf32) refused.push_back(fe::NumericalNote_t::TENSOR_CORE);
  if (dtype == DType::Float32) refused.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
  g.deselect_numeric_notes(refused);
  why = failed(g.check_support());
  if (why.empty()) why = failed(g.build_plans());
  if (why.empty()) why = failed(g.get_workspace_size(plan.workspace));
  return why;
}

// Calls describe(graph), which adds tensors and nodes, and finishes the plan.
template <class Describe>
void fill_plan(GraphPlan& plan, cudnnHandle_t handle, DType dtype, const GraphRules& rules,
               Describe&& describe) {
  const fe::DataType_t compute = dtype == DType::Float64 ? fe::DataType_t::DOUBLE : fe::DataType_t::FLOAT;
  plan.graph.set_io_data_type(graph_type(dtype))
      .set_intermediate_data_type(compute)
      .set_compute_data_type(compute);
  try {
    describe(plan.graph);
    plan.refusal = choose_plan(plan, handle, dtype, rules);
  } catch (const std::exception& e) {
    plan.refusal = e.what();
    if (plan.refusal.empty()) plan.refusal = "unknown";
  }
}

template <class Describe>
std::shared_ptr<GraphPlan> make_plan(CudnnDevice& device, DType dtype, const GraphRules& rules,
                                     Describe&& describe) {
  auto plan = std::make_shared<GraphPlan>();
  std::lock_guard lock(device.mutex);
  RelaxedCapture relaxed;  // engines are compiled and loaded
  fill_plan(*plan, device.handle, dtype, rules, describe);
  return plan;
}

using GraphData = std::pair<int64_t, const void*>;  // a tensor's number in the graph and its memory

inline void run_plan(const LaunchContext& ctx, const char* op, CudnnDevice& device, GraphPlan& plan,
                     std::initializer_list<GraphData> data) {
  void* workspace = plan.workspace > 0 ? ctx.scratch(static_cast<size_t>(plan.workspace)) : nullptr;
  std::unordered_map<int64_t, void*> pack;
  for (const auto& [id, p] : data) pack.emplace(id, const_cast<void*>(p));
  {
    std::lock_guard lock(device.mutex);
    const cudnnStatus_t status = cudnnSetStream(device.handle, static_cast<cudaStream_t>(ctx.stream));
    if (status != CUDNN_STATUS_SUCCESS)
      raise_library_error(std::string(op) +
                          ": cuDNN does not take the stream: " + cudnnGetErrorString(status));
    if (fe::error_t e = plan.graph.execute(device.handle, pack, workspace); e.is_bad()) {
      check(cudaPeekAtLastError(), op);  // an earlier kernel's, it may be
      raise_library_error(std::string(op) + ": cuDNN failed: " + e.get_message());
    }
  }
  if (launch_blocking) finish_blocking(ctx, op);
}

}  // namespace warptape::kernels::cuda
