// at::Tensor and the ops.
#pragma once

#include "ATen/Context.h"
#include "ATen/DeviceGuard.h"
#include "ATen/Dispatch.h"
#include "ATen/Functions.h"
#include "ATen/Parallel.h"
