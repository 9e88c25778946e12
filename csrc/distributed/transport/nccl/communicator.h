// One rank's end of NCCL's communicator. It does not block: who waits for it looks around meanwhile, so that
// the wait can be given up.
#pragma once

#include <functional>

#include "distributed/store/store.h"
#include "distributed/transport/nccl/library.h"

namespace warptape::distributed {

class Communicator {
 public:
  using LookAround = std::function<void()>;  // throws to give up

  Communicator(int rank, int size, int device) : rank_(rank), size_(size), device_(device) {}
  ~Communicator();
  int device() const { return device_; }
  // Collective: rank 0's id comes through the store. DistBackendError at the deadline, which names the ranks
  // that did not come.
  void connect(Store& store, Clock::time_point deadline, const LookAround& poll);
  // Makes NCCL's calls in `calls` as one group and returns when they lie in their stream.
  void issue(const std::function<ncclResult_t(ncclComm_t)>& calls, const LookAround& poll);
  // What went wrong since, or empty. From any thread, as abort(), after which streams go on with whatever
  // lies in the outputs.
  std::string error();
  void abort();

 private:
  ncclResult_t state();
  bool settle(Clock::time_point deadline, const LookAround& poll);

  const int rank_, size_, device_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // null before it is made and when it was aborted
};

}  // namespace warptape::distributed
