// Convolution and its two gradients as graphs of cuDNN, of one node each, without what runs them: a test
// makes plans of these graphs on a machine that has no GPU.
#pragma once

#include <array>

#include "kernels/conv/conv.h"
#include "kernels/cuda/libraries/cudnn_graph.h"

namespace warptape::kernels::cuda {

enum class Pass { Forward, Input, Weight };
enum class ConvLayout { ChannelsFirst, ChannelsLast };  // of all three tensors, which are dense
enum Ids : int64_t { kInput = 1, kWeight, kOutput };  // tensors of the graphs, gradients by what they are of

using Sizes = std::vector<int64_t>;
inline Sizes input_sizes(const ConvPlan& p) { return {p.batch, p.in_channels, p.in[0], p.in[1]}; }
// Fewer channels than the input has are how cuDNN is told of groups.
inline Sizes weight_sizes(const ConvPlan& p) {
  return {p.out_channels, p.in_channels / p.groups, p.kernel[0], p.kernel[1]};
}
inline Sizes output_sizes(const ConvPlan& p) { return {p.batch, p.out_channels, p.out[0], p.out[1]}; }

inline void set_dense(fe::graph::Tensor_attributes& tensor, int64_t id, const Sizes& sizes, DType dtype,
                      ConvLayout layout) {
  const bool last = layout == ConvLayout::ChannelsLast;
  Sizes strides(4, 1);
  int64_t stride = 1;
  for (size_t d : last ? std::array<size_t, 4>{1, 3, 2, 0} : std::array<size_t, 4>{3, 2, 1, 0}) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  tensor.set_uid(id).set_dim(sizes).set_stride(strides).set_data_type(graph_type(dtype));
}

// Padding behind the input: as in front where that gives the output's size, else the least that does. Rows
// that the stride leaves over make it negative.
inline int64_t padding_after(const ConvPlan& p, int d) {
  const int64_t reach = p.dilation[d] * (p.kernel[d] - 1) + 1;
  const int64_t least = (p.out[d] - 1) * p.stride[d] + reach - p.in[d] - p.padding[d];
  const int64_t most = least + p.stride[d] - 1;
  if (least <= p.padding[d] && p.padding[d] <= most) return p.padding[d];
  return least <= 0 && most >= 0 ? 0 : least;
}

template <class Attributes>
Attributes attributes_of(const ConvPlan& p) {
  return Attributes()
      .set_pre_padding({p.padding[0], p.padding[1]})
      .set_post_padding({padding_after(p, 0), padding_after(p, 1)})
      .set_stride({p.stride[0], p.stride[1]})
      .set_dilation({p.dilation[0], p.dilation[1]});
}

inline void finish(const GraphTensor& out, int64_t id, const Sizes& sizes, DType dtype, ConvLayout layout) {
  set_dense(*out, id, sizes, dtype, layout);
  out->set_output(true);
}

inline void describe(fe::graph::Graph& g, Pass pass, const ConvPlan& p, ConvLayout layout) {
  auto tensor = [&](int64_t id, const Sizes& sizes) {
    fe::graph::Tensor_attributes attributes;
    set_dense(attributes, id, sizes, p.dtype, layout);
    return g.tensor(attributes);
  };
  switch (pass) {
    case Pass::Forward: {
      auto out = g.conv_fprop(tensor(kInput, input_sizes(p)), tensor(kWeight, weight_sizes(p)),
                              attributes_of<fe::graph::Conv_fprop_attributes>(p));
      return finish(out, kOutput, output_sizes(p), p.dtype, layout);
    }
    case Pass::Input: {
      auto out = g.conv_dgrad(tensor(kOutput, output_sizes(p)), tensor(kWeight, weight_sizes(p)),
                              attributes_of<fe::graph::Conv_dgrad_attributes>(p));
      return finish(out, kInput, input_sizes(p), p.dtype, layout);
    }
    case Pass::Weight: {
      auto out = g.conv_wgrad(tensor(kOutput, output_sizes(p)), tensor(kInput, input_sizes(p)),
                              attributes_of<fe::graph::Conv_wgrad_attributes>(p));
      return finish(out, kWeight, weight_sizes(p), p.dtype, layout);
    }
  }
}

inline std::string text_of(const ConvPlan& p) {
  auto pair = [](const int64_t* x) { return std::to_string(x[0]) + "x" + std::to_string(x[1]); };
  return "input [" + std::to_string(p.batch) + ", " + std::to_string(p.in_channels) + ", " + pair(p.in) +
         "], weight [" + std::to_string(p.out_channels) + ", " + std::to_string(p.in_channels / p.groups) +
         ", " + pair(p.kernel) + "], stride " + pair(p.stride) + ", padding " + pair(p.padding) +
         ", dilation " + pair(p.dilation) + ", groups " + std::to_string(p.groups);
}

}  // namespace warptape::kernels::cuda
