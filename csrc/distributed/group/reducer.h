// Averages the gradients of a model over the ranks of a group while backward still runs: what is behind
// DistributedDataParallel (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
// Training", sections 3.2 and 4.2).
#pragma once

#include <functional>

#include "autograd/tape.h"
#include "distributed/group/process_group.h"

namespace warptape::distributed {

// Gradients that travel together, one after the other in one flat tensor.
struct GradBucket {
  size_t index = 0;
  bool is_last = false;
  Tensor buffer;                   // [numel of all]
  std::vector<size_t> parameters;  // numbers
  std::vector<Tensor> views;       // of the buffer, laid out as the parameters
};

// A bucket's reduction on its way.
struct WT_API Reduction {
  virtual ~Reduction();
  virtual Tensor wait() = 0;  // the average, as the bucket's buffer or in it
};
// What reduces a bucket in place of the plain average.
struct WT_API CommHook {
  virtual ~CommHook();
  virtual const char* name() const = 0;
  virtual std::shared_ptr<Reduction> start(const GradBucket& bucket) = 0;
};
// The average with the gradients rounded to `dtype` (a 16-bit one) on their way.
WT_API std::shared_ptr<CommHook> compress_hook(std::shared_ptr<ProcessGroup> group, DType dtype);

// Note [Reducer]: a forward pass ends with prepare(); in the backward pass after it each parameter's node
// reports when its gradient is complete. The gradient is copied to its place in a bucket, and a full bucket's
// reduction starts once those of all buckets before it have: so the order is the same on every rank, whatever
// order gradients come in. At the end of the pass that filled the last bucket all are waited for, and the
// parameters have the average as their gradients. With find_unused a pass that ends before that gives zeros
// for what it did not reach, and another one may follow it. Buckets are first filled in the reverse order of
// the parameters; after the first pass they are made anew in the order in which rank 0 saw gradients come.
class WT_API Reducer {
 public:
  struct Options {
    int64_t first_bucket_bytes = 1 << 20;  // small, so that the first reduction starts early
    int64_t bucket_bytes = 25 << 20;
    bool find_unused = false;
    bool gradients_are_views = true;  // of the buckets
    bool static_graph = false;        // every pass uses the parameters that the first one used
  };
  struct Stats {
    int64_t passes = 0;  // with reduction
    bool rebuilt = false;
    std::vector<int64_t> bucket_bytes;
    double wait_seconds = 0, total_wait_seconds = 0;  // at the end of backward: of the last pass, of all
    std::vector<std::string> unused;                  // in the last pass on this rank
    std::string hook;
  };

  // The parameters are leaves that require gradients, the same on all ranks, none twice.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<Tensor> parameters, std::vector<std::string> names,
          Options options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before a forward pass whose gradients are to be reduced. RuntimeError when the last backward pass left
  // parameters without a gradient. Makes the buckets anew where it is time to.
  void begin_forward();
  // After it; what the loss comes from is in `outputs` (needed with find_unused only).
  void prepare(TensorList outputs);
  // In the backward pass, once an output's gradient is there: whatever it reaches, the pass ends with a
  // reduction.
  void begin_backward();
  // After a forward pass whose gradients stay on this rank.
  void prepare_without_reduction() { expecting_ = false; }
  // Averages what backward passes without reduction have left: those of a pipeline's micro-batches.
  void reduce();
  void set_hook(std::shared_ptr<CommHook> hook);
  void set_static_graph();  // before the first pass
  Stats stats() const;
  const std::vector<Tensor>& parameters() const { return parameters_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

 private:
  struct Bucket : GradBucket {
    size_t missing = 0;  // gradients that have not come yet
    std::shared_ptr<Reduction> reduction;
  };
  struct Place {
    size_t bucket = 0, position = 0;
  };
  struct ReadyHook;
  struct EndOfPass;

  bool finds_unused() const { return options_.find_unused && !options_.static_graph; }
  bool may_leave_out() const { return options_.find_unused || options_.static_graph; }
  void make_buckets(const std::vector<size_t>& order);
  void rebuild_buckets();
  void check_finished() const;
  void refuse_unused(const std::function<bool(size_t)>& unused) const;
  std::vector<size_t> find_unused(TensorList outputs) const;
  void on_gradient(size_t parameter);
  void mark_ready(size_t parameter);
  void fill(size_t parameter);
  void start(Bucket& bucket);
  void start_count_of_uses();
  void expect_pass();
  void end_pass();
  void finish();
  void deliver(size_t parameter);

  std::shared_ptr<ProcessGroup> group_;
  std::vector<Tensor> parameters_;
  std::vector<std::string> names_;
  Options options_;
  std::vector<Ref<Node>> nodes_;  // of the parameters; kept, for the hooks are theirs
  std::shared_ptr<CommHook> hook_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // of the parameters

  // The pass at work.
  bool expecting_ = false;      // gradients are to be reduced
  bool unfinished_ = false;     // some have come
  bool at_end_queued_ = false;  // with the engine
  bool failed_ = false;         // backward ended with an exception
  bool again_ = false;          // a backward pass after the first one of this forward pass
  size_t next_bucket_ = 0;      // to be started
  std::vector<char> ready_;     // by parameter
  std::vector<size_t> unused_;  // that no gradient will come for
  bool unused_known_ = false;   // under static_graph
  std::vector<size_t> order_;   // in which gradients came in the first pass
  bool rebuilt_ = false;
  Tensor uses_;  // uint8 [parameters]: got a gradient since the last reduction
  std::shared_ptr<Work> count_of_uses_;
  Stats stats_;
};

}  // namespace warptape::distributed
