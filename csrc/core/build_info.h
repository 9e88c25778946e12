// What this library was built with, for `python -m warptape.doctor` and bug reports.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/export.h"

namespace warptape {

// Pairs of name and value, in the order to print: version, compiler, isas (of the CPU kernels, lowest first),
// sanitize. A plugin, which may be a wheel of its own, says itself what it was built with (plugin_build).
WT_API std::vector<std::pair<std::string, std::string>> build_info();

}  // namespace warptape
