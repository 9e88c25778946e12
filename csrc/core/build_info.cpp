#include "core/build_info.h"

namespace warptape {

std::vector<std::pair<std::string, std::string>> build_info() {
  // CMake defines the macros, for this file alone.
  return {{"version", WARPTAPE_VERSION},
          {"compiler", WARPTAPE_COMPILER},
          {"isas", WARPTAPE_BUILT_ISAS},
          {"sanitize", WARPTAPE_SANITIZERS}};
}

}  // namespace warptape
