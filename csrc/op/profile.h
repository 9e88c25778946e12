// How the arguments of a recorded call lie in ProfilerThread::numbers: their count, each argument by a mark
// and what it announces, the count of the tensors that the call returned, and these.
#pragma once

#include "op/op.h"

namespace warptape {

enum PutMark : int64_t {
  kPutNone,     // nothing: absent, or of a type that is not recorded
  kPutTensor,   // dtype, count of sizes, sizes, count of strides, strides
  kPutTensors,  // count, and each as above
  kPutInt,      // the number
  kPutDouble,   // its bits
  kPutBool,     // 0 or 1
  kPutInts,     // count, numbers
};

}  // namespace warptape
