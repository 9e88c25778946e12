// Mixed precision by declaration: see Autocast in op.h.
#pragma once

#include "core/export.h"

namespace warptape {

// Brackets of a context. What was cast inside is kept until the outermost one ends.
WT_API void enter_autocast();
WT_API void leave_autocast();
WT_API bool set_autocast_cache(bool on);  // returns what it was
WT_API void clear_autocast_cache();

}  // namespace warptape
