// Which ops may give a result on the memory of an argument, for passes over graphs: noted next to their
// declarations.
//   const Sharing views{Sharing::View, {&t, &permute}};
#pragma once

#include "op/op.h"

namespace warptape {

class WT_API Sharing {
 public:
  enum Kind : uint8_t {
    None,
    View,        // the memory, or a part of it, in another geometry
    Reshape,     // the same: with the argument's sizes it is the argument; at times a copy
    Conversion,  // the argument itself where it is what is asked for
    Dropout,     // the argument itself in evaluation
    Argument,    // an argument or a view of it, by chance
  };
  Sharing(Kind kind, std::initializer_list<const OpInfo*> ops);
  static Kind of(const OpInfo& op);
};

}  // namespace warptape
