#include "bindings/distributed.h"

namespace warptape::bindings {

void init_distributed(pybind11::module_& module) {
  pybind11::module_ m = module.def_submodule("_distributed");
  init_distributed_store(m);
}

}  // namespace warptape::bindings
