// Reading and writing by index along one dim.
#pragma once

#include "kernels/index/index.h"
#include "op/op.h"

namespace warptape::ops {

extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&, bool)> gather;
// gather for a loss: an index out of bounds is an IndexError.
WT_API Tensor gather_classes(const char* op, const Tensor& x, int64_t dim, const Tensor& index);
extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&)> scatter_add;
extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Scalar&)> scatter_value;
// Refuses a tensor to be written that shares memory with what is read.
void check_no_overlap(const char* op, const Tensor& self, const Tensor& index, const Tensor& source);
// What scatter and its kin check, and the launch: `self` is written at index along dim.
void check_scatter(const char* op, const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src);
void run_scatter(const char* op, const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                 kernels::ScatterMode mode);
// ... src, reduce, include_self
extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, std::string_view, bool)>
    scatter_reduce;
// ... src, reduce
extern WT_API const
    Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, std::optional<std::string_view>)>
        scatter;
extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&)> index_select;
extern WT_API const Op<Tensor(const Tensor&, IntList)> flip;
extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, const Scalar&)> index_add;

}  // namespace warptape::ops
