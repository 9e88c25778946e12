// Losses element by element: of numbers and of probabilities. The forward is the formula and its sum in one
// pass; without a reduction, and backward, they are elementwise kernels of the same plan.
#pragma once

#include "kernels/elementwise/elementwise.h"
#include "kernels/nn/loss.h"

namespace warptape::kernels {

// Slots "mse_loss_sum", "l1_loss_sum", ...: one value, of any floating dtype, from the inputs of the plan,
// whose operand 0 gives only the order of the dims.
using SumLossFn = void(const LaunchContext&, const View& loss, const ElementwisePlan&, Reduction);

}  // namespace warptape::kernels
