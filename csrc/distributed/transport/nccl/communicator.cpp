#include "distributed/transport/nccl/communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/cuda/error.h"
#include "distributed/group/collective_header.h"
#include "kernels/cuda/libraries/library.h"

namespace warptape::distributed {
namespace {

constexpr auto kTimeToLeave = std::chrono::seconds(10);

bool well(ncclResult_t r) { return r == ncclSuccess || r == ncclInProgress; }

}  // namespace

const Nccl& nccl() {
  static const Nccl all = [] {
    Nccl n;
#define WT_NCCL_FIND(name) \
  n.name = reinterpret_cast<decltype(n.name)>(library_symbol(kernels::cuda::Library::Nccl, "nccl" #name));
    using kernels::cuda::library_symbol;
    WT_NCCL_FUNCTIONS(WT_NCCL_FIND)
#undef WT_NCCL_FIND
    return n;
  }();
  return all;
}

std::string describe(ncclResult_t result, ncclComm_t comm) {
  const char* more = nccl().GetLastError(comm);
  std::string text = message("NCCL: ", nccl().GetErrorString(result), " (", more ? more : "", ")");
  if (result == ncclInvalidUsage)
    text += "; every rank of a host needs a device of its own (warptape.cuda.set_device(local rank))";
  return text;
}

// Calls of the group are over, or the communicator was aborted.
Communicator::~Communicator() {
  if (!comm_) return;
  kernels::cuda::use_device(device_);
  const auto deadline = Clock::now() + kTimeToLeave;
  ncclResult_t now = nccl().CommFinalize(comm_);
  while (now == ncclInProgress && Clock::now() < deadline) {
    std::this_thread::sleep_for(Milliseconds(1));
    now = state();
  }
  now == ncclSuccess ? nccl().CommDestroy(comm_) : nccl().CommAbort(comm_);
}

void Communicator::connect(Store& store, Clock::time_point deadline, const LookAround& poll) {
  ncclUniqueId id;
  store.set(message("here/", rank_), "");
  try {
    if (rank_ == 0) {
      if (auto r = nccl().GetUniqueId(&id); r != ncclSuccess) throw DistBackendError(describe(r, nullptr));
      store.set("id", std::string(id.internal, sizeof id.internal));
    } else {
      const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
      const std::string text = store.get("id", std::max(left, Milliseconds(1)));
      std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof id.internal));
    }
    kernels::cuda::use_device(device_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    {
      std::lock_guard lock(mutex_);
      auto r = nccl().CommInitRankConfig(&comm_, size_, id, rank_, &config);
      if (!well(r)) throw DistBackendError(describe(r, std::exchange(comm_, nullptr)));
    }
    if (settle(deadline, poll)) return;
  } catch (const DistStoreError&) {  // the time is over
  }
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r)
    if (const std::string key[] = {message("here/", r)}; !store.check(key)) missing.push_back(r);
  throw DistBackendError(missing.empty()
                             ? "NCCL did not connect the ranks in time; NCCL_DEBUG=INFO says what it tries"
                             : message("timed out waiting for ", list_of(missing), " to make a first call"));
}

void Communicator::issue(const std::function<ncclResult_t(ncclComm_t)>& calls, const LookAround& poll) {
  kernels::cuda::use_device(device_);
  {
    std::lock_guard lock(mutex_);
    if (comm_) {
      ncclResult_t start = nccl().GroupStart(), first = well(start) ? calls(comm_) : start;
      const ncclResult_t end = nccl().GroupEnd();
      if (!well(first) || !well(end)) throw DistBackendError(describe(well(first) ? end : first, comm_));
    }
  }
  settle(Clock::time_point::max(), poll);
}

ncclResult_t Communicator::state() {
  std::lock_guard lock(mutex_);
  ncclResult_t now = ncclSuccess;
  if (comm_)
    if (auto r = nccl().CommGetAsyncError(comm_, &now); r != ncclSuccess) return r;
  return now;
}

// False at the deadline.
bool Communicator::settle(Clock::time_point deadline, const LookAround& poll) {
  auto nap = std::chrono::microseconds(5);
  while (true) {
    const ncclResult_t now = state();
    poll();
    if (!well(now)) throw DistBackendError(error());
    if (now == ncclSuccess) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(1000));
  }
}

std::string Communicator::error() {
  const ncclResult_t now = state();
  if (well(now)) return "";
  std::lock_guard lock(mutex_);
  return describe(now, comm_);
}

void Communicator::abort() {
  std::lock_guard lock(mutex_);
  if (comm_) nccl().CommAbort(std::exchange(comm_, nullptr));
}

}  // namespace warptape::distributed
