// Everything but the bindings.
#pragma once

#include "torch/autograd.h"
#include "torch/library.h"
#include "torch/types.h"
