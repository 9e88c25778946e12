// What calls have that is no part of their cache key: numbers and the arguments of ops.
#pragma once

#include <string>

#include "graph/ir/call.h"

namespace warptape::graph {

// Appends it, so that calls of one key with equal texts do the same to their memories, but for the random
// numbers that they draw. What a node has but tensors comes from the arguments of the op that made it, so
// it says which one did; false where that is none of these, with the reason.
bool put_arguments(std::string& to, const std::vector<Call>& calls, std::string& why);

}  // namespace warptape::graph
