// at::Tensor and the ops.
#pragma once

#include "ATen/Dispatch.h"
#include "ATen/Functions.h"
#include "ATen/Parallel.h"
