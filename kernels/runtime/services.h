// What the program above supplies to kernels: Python, by the bindings. Without one the defaults here serve.
#pragma once

#include <string>

#include "kernels/types.h"

namespace warptape::kernels {

class WT_API Services {
 public:
  virtual ~Services();
  // Asked by long work now and then (interrupt.h), never in threads of the pool; throws to end the work.
  virtual void check_interrupt();
  // The path of the LAPACK library, or nothing where it is not installed: then the system's liblapack.so.3
  // serves. Asked on first use; it may take Python's lock.
  virtual std::string lapack_library();
};
// The object must outlive all threads.
WT_API void install(Services& services);
WT_API Services* services();  // null before

}  // namespace warptape::kernels
