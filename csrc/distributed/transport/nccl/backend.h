// The backend of CUDA tensors. NCCL's calls lie in a stream of the group's own, which waits for the stream
// that is current where a call is made; waiting for a call lets the current stream wait. One device per rank.
#pragma once

#include "distributed/group/process_group.h"
#include "distributed/transport/nccl/watchdog.h"

namespace warptape::distributed {

class NcclBackend final : public Backend {
 public:
  NcclBackend(const std::shared_ptr<Store>& store, int rank, int size);
  ~NcclBackend() override;
  const char* name() const override { return "nccl"; }
  bool on_stream() const override { return true; }
  std::vector<std::shared_ptr<Transfer>> start(std::vector<StreamCall> calls) override;
  bool done(Transfer& t) override;
  void wait(Transfer& t, Milliseconds timeout) override;
  void run(const Collective& call, uint64_t, const std::string&, Milliseconds) override;
  std::shared_ptr<Transfer> post(const Collective& call, const std::string& site) override;
  void abort(const std::string& reason) override { watchdog_->fail(AbortReason::Requested, reason); }
  void explain(const std::string& error) override { watchdog_->explain(error); }
  std::string aborted() const override { return watchdog_->reason(); }
  AbortReason abort_reason() const override { return watchdog_->abort_reason(); }
  void close() override;

 private:
  void poll();
  void check(const StreamCall& call) const;
  void connect(int device, const StreamCall& call);
  std::shared_ptr<NcclCall> take_up(StreamCall& call);
  void issue(const std::vector<StreamCall>& calls, const std::vector<std::shared_ptr<NcclCall>>& taken);
  ncclResult_t issue(const Collective& call, ncclComm_t comm) const;
  ncclResult_t issue_exchange(const Collective& call, ncclComm_t comm) const;
  void finish(const std::vector<StreamCall>& calls, const std::vector<std::shared_ptr<NcclCall>>& taken);

  const std::shared_ptr<Store> store_;
  const int rank_, size_;
  const std::shared_ptr<Watchdog> watchdog_;
  std::mutex mutex_;  // of making calls
  std::shared_ptr<Communicator> communicator_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t before_ = nullptr;
};

}  // namespace warptape::distributed
