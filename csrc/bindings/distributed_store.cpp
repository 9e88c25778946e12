// The key-value stores.
#include "bindings/distributed.h"
#include "distributed/store.h"

namespace warptape::bindings {

namespace py = pybind11;
using namespace distributed;

void init_distributed_store(py::module_& m) {
  py::class_<Store, std::shared_ptr<Store>>(m, "Store",
                                            "A key-value store through which ranks find each other.");
}

}  // namespace warptape::bindings
