// A group of ranks and the calls between them. A value: no call depends on a global group.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <thread>

#include "distributed/group/collective.h"

namespace warptape::distributed {

struct World;

// A call on its way.
class WT_API Work {
 public:
  virtual ~Work();
  virtual bool is_completed() = 0;
  // Returns when the call is over and its outputs hold the result; throws what went wrong. Without a time the
  // group's holds.
  virtual void wait(std::optional<Milliseconds> timeout) = 0;
  virtual std::exception_ptr exception() = 0;           // null while under way, and when all went well
  virtual int source_rank() const { return kAnyRank; }  // of a receive, in the group
  const std::vector<Tensor>& outputs() const { return outputs_; }

 protected:
  std::vector<Tensor> outputs_;
};

// Makes the backend of one rank of a group; the ranks meet in the store, whose keys are the group's own.
using BackendFactory = std::unique_ptr<Backend> (*)(const std::shared_ptr<Store>& store, int rank, int size,
                                                    Milliseconds timeout);
// Plugins add theirs when they are opened, which asking for their name does.
WT_API void register_backend(const std::string& name, BackendFactory factory);
WT_API bool has_backend(const std::string& name);

class WT_API ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  struct Options {
    std::string name;
    std::string cpu_backend = "shm", cuda_backend = "nccl";
    Milliseconds timeout = kDefaultTimeout;
  };
  // Collective over `ranks` (of the world, in the group's order), to which the calling rank belongs.
  static std::shared_ptr<ProcessGroup> make(World& world, std::vector<int> ranks, Options options);
  ~ProcessGroup();

  const std::string& name() const { return options_.name; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::shared_ptr<World>& world() const { return world_; }
  Milliseconds timeout() const { return options_.timeout; }
  void set_timeout(Milliseconds t) { options_.timeout = t; }
  const std::string& backend_name(DeviceType device) const {
    return device == DeviceType::CUDA ? options_.cuda_backend : options_.cpu_backend;
  }

  // Makes the call, on this thread when nothing is queued and `async` is false. Tensors need not be
  // contiguous. Checks what one rank can check first: ShapeError, DtypeError, DeviceError, ValueError. `site`
  // is where the user stands.
  std::shared_ptr<Work> run(Collective call, std::string site, bool async,
                            std::optional<Milliseconds> timeout = {});

  // Sends and receives that go together, so that their order among each other does not matter.
  std::vector<std::shared_ptr<Work>> run_batch(std::vector<Collective> calls, const std::string& site);

  // See Backend::abort.
  void abort(const std::string& reason);
  void explain(const std::string& error);  // the one after which this rank leaves
  // Lets what is queued come to its end and leaves the group. Calls after it are errors.
  void close();

 private:
  struct Job;
  struct PointToPoint;
  struct OnStream;
  ProcessGroup(World& world, std::vector<int> ranks, Options options);
  Backend& backend(DeviceType device);
  void check_open(const Collective& call);
  Backend& backend_of(const Collective& call);
  std::shared_ptr<Work> post(Collective call, std::string site);
  std::vector<std::shared_ptr<Work>> start(Backend& backend, std::vector<Collective> calls,
                                           const std::string& site, Milliseconds timeout);
  void execute(Job& job);
  std::exception_ptr failed(uint64_t flight, const Backend* backend);
  std::string dump_once(const Backend& backend, const std::string& reason);
  void run_queue();

  std::shared_ptr<World> world_;
  std::vector<int> ranks_;
  int rank_;
  Options options_;
  std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::mutex start_mutex_;  // of calls on a stream: their order is that of their numbers
  std::mutex backends_mutex_;
  std::unique_ptr<Backend> backends_[kNumDeviceTypes];
  std::deque<std::shared_ptr<Job>> queue_;
  bool busy_ = false;       // a thread carries out a call:
  std::thread::id runner_;  // this one, or the last that did
  bool closed_ = false;
  uint64_t sequence_ = 0;
  std::string dump_;  // where the flight record was written when the group came to its end
  bool dumped_ = false;
  std::thread worker_;
};

}  // namespace warptape::distributed
