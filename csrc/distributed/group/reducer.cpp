#include "distributed/group/reducer.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "autograd/engine.h"
#include "core/errors.h"
#include "tensor/before_write.h"

namespace warptape::distributed {

Reduction::~Reduction() = default;
CommHook::~CommHook() = default;

namespace {

constexpr const char* kName = "DistributedDataParallel";

struct PlainReduction final : Reduction {
  PlainReduction(Tensor b, std::shared_ptr<Work> w) : buffer(std::move(b)), work(std::move(w)) {}
  Tensor wait() override {
    if (work) work->wait({});
    return buffer;
  }
  Tensor buffer;
  std::shared_ptr<Work> work;  // null: nothing to do
};

std::shared_ptr<Reduction> average(ProcessGroup& group, Tensor buffer, size_t bucket) {
  std::shared_ptr<Work> work;
  if (group.size() > 1)
    work = group.run({CollectiveOp::AllReduce, ReduceOp::Avg, 0, 0, {}, {buffer}},
                     message(kName, " bucket ", bucket), true);
  return std::make_shared<PlainReduction>(std::move(buffer), std::move(work));
}

struct CompressHook final : CommHook {
  CompressHook(std::shared_ptr<ProcessGroup> g, DType d) : group(std::move(g)), dtype(d) {}
  const char* name() const override {
    return dtype == DType::BFloat16 ? "bf16_compress_hook" : "fp16_compress_hook";
  }
  std::shared_ptr<Reduction> start(const GradBucket& bucket) override {
    return average(*group, raw_cast(bucket.buffer, dtype), bucket.index);
  }
  std::shared_ptr<ProcessGroup> group;
  DType dtype;
};

bool same_place(const Tensor& a, const Tensor& b) {
  return &a.storage() == &b.storage() && a.offset() == b.offset() && a.strides() == b.strides();
}

// Parameters in the given order, cut into lists of about the given size: each of one dtype and device, and in
// the order in which they will be full.
std::vector<std::vector<size_t>> assign(const std::vector<Tensor>& parameters,
                                        const std::vector<size_t>& order, const Reducer::Options& options) {
  struct Open {
    DType dtype;
    Device device;
    std::vector<size_t> members;
    int64_t bytes = 0, limit = 0;
  };
  std::vector<Open> open;
  std::vector<std::vector<size_t>> out;
  auto close = [&](Open& o) {
    out.push_back(std::exchange(o.members, {}));
    o.bytes = 0, o.limit = options.bucket_bytes;
  };
  for (size_t i : order) {
    const Tensor& p = parameters[i];
    auto at = std::find_if(open.begin(), open.end(),
                           [&](auto& o) { return o.dtype == p.dtype() && o.device == p.device(); });
    if (at == open.end())
      at = open.insert(open.end(), {p.dtype(), p.device(), {}, 0, options.first_bucket_bytes});
    at->members.push_back(i);
    at->bytes += p.numel() * static_cast<int64_t>(p.itemsize());
    if (at->bytes >= at->limit) close(*at);
  }
  for (Open& o : open)
    if (!o.members.empty()) close(o);
  std::vector<size_t> when(parameters.size());
  for (size_t k = 0; k < order.size(); ++k) when[order[k]] = k;
  std::sort(out.begin(), out.end(), [&](auto& a, auto& b) { return when[a.back()] < when[b.back()]; });
  return out;
}

}  // namespace

std::shared_ptr<CommHook> compress_hook(std::shared_ptr<ProcessGroup> group, DType dtype) {
  WT_CHECK(dtype == DType::BFloat16 || dtype == DType::Float16, DtypeError, kName,
           ": gradients are compressed to bfloat16 or float16, not ", warptape::name(dtype));
  return std::make_shared<CompressHook>(std::move(group), dtype);
}

// On the node that adds to a parameter's gradient; called after it has.
struct Reducer::ReadyHook final : NodeHook {
  ReadyHook(Reducer& r, size_t p) : reducer(r), parameter(p) {}
  void call(std::span<Tensor>, std::span<Tensor>) override { reducer.on_gradient(parameter); }
  Reducer& reducer;
  size_t parameter;
};

// What the engine holds until the end of the pass; when that does not come, backward has failed.
struct Reducer::EndOfPass {
  explicit EndOfPass(Reducer& r) : reducer(r) {}
  ~EndOfPass() {
    reducer.at_end_queued_ = false;
    reducer.failed_ |= !reached;
  }
  Reducer& reducer;
  bool reached = false;
};

Reducer::Reducer(std::shared_ptr<ProcessGroup> group, std::vector<Tensor> parameters,
                 std::vector<std::string> names, Options options)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      names_(std::move(names)),
      options_(options),
      places_(parameters_.size()),
      ready_(parameters_.size(), 0),
      uses_(zeros(Shape{static_cast<int64_t>(parameters_.size())}, {DType::UInt8, {}})) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    WT_CHECK(requires_grad(parameters_[i]) && is_leaf(parameters_[i]), ValueError, kName, ": parameter ",
             names_[i], " is no leaf that requires a gradient");
    nodes_.push_back(gradient_accumulator(parameters_[i]));
    nodes_[i]->more().post_hooks.push_back(std::make_shared<ReadyHook>(*this, i));
  }
  std::vector<size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  make_buckets(order);
}

Reducer::~Reducer() {
  for (Ref<Node>& node : nodes_)
    std::erase_if(node->more().post_hooks, [&](auto& h) {
      auto* mine = dynamic_cast<ReadyHook*>(h.get());
      return mine && &mine->reducer == this;
    });
}

void Reducer::make_buckets(const std::vector<size_t>& order) {
  buckets_.clear();
  auto lists = assign(parameters_, order, options_);
  for (auto& list : lists) {
    Bucket& b = buckets_.emplace_back();
    b.index = buckets_.size() - 1;
    b.is_last = buckets_.size() == lists.size();
    int64_t numel = 0;
    for (size_t i : list) numel += parameters_[i].numel();
    b.buffer = zeros(Shape{numel}, options_of(parameters_[list[0]]));
    int64_t at = 0;
    for (size_t i : list) {
      const Tensor& p = parameters_[i];
      places_[i] = {b.index, b.views.size()};
      b.views.push_back(alias(b.buffer, p.sizes(), empty_like_layout(p, p.dtype()).strides(), at));
      at += p.numel();
    }
    b.parameters = std::move(list);
  }
}

// ---- around the forward pass ----

void Reducer::check_finished() const {
  if (unfinished_ && !failed_) refuse_unused([&](size_t i) { return !ready_[i]; });
}

void Reducer::refuse_unused(const std::function<bool(size_t)>& unused) const {
  std::string missing;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (unused(i))
      missing += (missing.empty() ? "" : ", ") + names_[i] + " (index " + std::to_string(i) + ")";
  throw Error(message(
      "Expected to have finished reduction in the prior iteration before starting a new one. This error "
      "indicates that your module has parameters that were not used in producing loss. You can enable unused "
      "parameter detection by passing the keyword argument `find_unused_parameters=True` to "
      "`DistributedDataParallel`, and by making sure all `forward` function outputs participate in "
      "calculating "
      "loss.\nParameters which did not receive grad for rank ",
      group_->rank(), ": ", missing));
}

void Reducer::begin_forward() {
  check_finished();
  rebuild_buckets();
}

void Reducer::rebuild_buckets() {
  if (rebuilt_ || stats_.passes == 0 || finds_unused()) return;
  rebuilt_ = stats_.rebuilt = true;
  const auto n = static_cast<int64_t>(order_.size());
  Tensor order = empty(Shape{n}, {DType::Int64, {}});
  std::copy(order_.begin(), order_.end(), order.data_as<int64_t>());
  if (group_->size() > 1)
    group_->run({CollectiveOp::Broadcast, ReduceOp::Sum, 0, 0, {}, {order}},
                message(kName, " order of the buckets"), false);
  make_buckets({order.data_as<int64_t>(), order.data_as<int64_t>() + n});
}

void Reducer::prepare(TensorList outputs) {
  check_finished();
  for (Bucket& b : buckets_) {
    if (b.reduction && failed_) try {  // of a pass that failed: its memory is in use until it is over
        b.reduction->wait();
      } catch (const DistBackendError&) {  // the group says so again when it is used next
      }
    b.reduction = nullptr;
  }
  unfinished_ = failed_ = again_ = false;
  if (!rebuilt_) order_.clear();
  if (finds_unused()) unused_ = find_unused(outputs);
  expect_pass();
}

// The parameters that no path of the graph leads to.
std::vector<size_t> Reducer::find_unused(TensorList outputs) const {
  std::unordered_set<Node*> seen;
  std::vector<Node*> open;
  auto visit = [&](Node* n) {
    if (n && seen.insert(n).second) open.push_back(n);
  };
  std::vector<Edge> roots;
  for (const Tensor& t : outputs) roots.push_back(gradient_edge(t));
  for (const Edge& e : roots) visit(e.node.get());
  while (!open.empty()) {
    Node* n = open.back();
    open.pop_back();
    for (const Edge& e : n->edges) visit(e.node.get());
  }
  std::vector<size_t> out;
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (!seen.count(nodes_[i].get())) out.push_back(i);
  return out;
}

void Reducer::set_hook(std::shared_ptr<CommHook> hook) {
  WT_CHECK(!hook_, Error, "register_comm_hook can only be called once.");
  hook_ = std::move(hook);
}

void Reducer::set_static_graph() {
  WT_CHECK(stats_.passes == 0 && !unfinished_, Error, kName,
           ": static_graph is set before the first backward pass");
  options_.static_graph = true;
}

Reducer::Stats Reducer::stats() const {
  Stats s = stats_;
  if (hook_) s.hook = hook_->name();
  for (const Bucket& b : buckets_)
    s.bucket_bytes.push_back(b.buffer.numel() * static_cast<int64_t>(b.buffer.itemsize()));
  for (size_t i : unused_) s.unused.push_back(names_[i]);
  return s;
}

// ---- during backward ----

void Reducer::begin_backward() {
  if (!expecting_) return;
  if (!at_end_queued_) {
    at_end_queued_ = true;
    queue_callback([this, end = std::make_shared<EndOfPass>(*this)] {
      at_end_queued_ = false;
      end_pass();
      end->reached = true;
    });
  }
  if (std::exchange(unfinished_, true) || again_) return;
  for (size_t i : unused_) mark_ready(i);
}

void Reducer::on_gradient(size_t parameter) {
  uses_.data_as<uint8_t>()[parameter] = 1;
  if (!expecting_) {
    // What accumulates before the pass that reduces does so in the buckets, not in a second copy of all.
    const Tensor& gradient = make_meta(parameters_[parameter]).grad;
    if (options_.gradients_are_views && gradient.defined() && !requires_grad(gradient)) fill(parameter);
    return;
  }
  begin_backward();
  mark_ready(parameter);
}

void Reducer::mark_ready(size_t parameter) {
  WT_CHECK(
      !ready_[parameter], Error, "Expected to mark a variable ready only once. Parameter ", names_[parameter],
      " (index ", parameter,
      ") got a gradient twice, or got one although find_unused_parameters or static_graph saw that it is "
      "not used. Either the loss comes from more than the outputs of forward, or there were several "
      "backward passes through parameters that are shared between them");
  ready_[parameter] = 1;
  if (!rebuilt_) order_.push_back(parameter);
  fill(parameter);
  if (--buckets_[places_[parameter].bucket].missing > 0) return;
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0)
    start(buckets_[next_bucket_++]);
  if (next_bucket_ == buckets_.size()) start_count_of_uses();
}

// Puts the gradient into the bucket; where there is none, other ranks may have one.
void Reducer::fill(size_t parameter) {
  const Place at = places_[parameter];
  const Tensor& view = buckets_[at.bucket].views[at.position];
  Tensor& gradient = make_meta(parameters_[parameter]).grad;
  if (!gradient.defined()) {
    raw_fill(view, 0);
  } else if (!same_place(gradient, view)) {
    raw_copy(view, gradient);
    if (options_.gradients_are_views) gradient = alias(view);
  }
}

void Reducer::start(Bucket& bucket) {
  bucket.reduction = hook_ ? hook_->start(bucket) : average(*group_, bucket.buffer, bucket.index);
}

void Reducer::start_count_of_uses() {
  if (!may_leave_out() || group_->size() == 1) return;
  count_of_uses_ = group_->run({CollectiveOp::AllReduce, ReduceOp::Max, 0, 0, {}, {uses_}},
                               message(kName, " used parameters"), true);
}

void Reducer::end_pass() {
  if (options_.static_graph && !unused_known_) {
    unused_known_ = true;
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (!ready_[i]) unused_.push_back(i);
    for (size_t i : unused_) mark_ready(i);
  }
  if (unfinished_ && finds_unused())  // outputs that the loss does not use lead to these
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (!ready_[i]) mark_ready(i);
  if (unfinished_ && next_bucket_ == buckets_.size()) finish();
}

void Reducer::expect_pass() {
  for (Bucket& b : buckets_) b.missing = b.parameters.size();
  std::fill(ready_.begin(), ready_.end(), 0);
  next_bucket_ = 0;
  count_of_uses_ = nullptr;
  expecting_ = true;
}

void Reducer::reduce() {
  const uint8_t* used = uses_.data_as<uint8_t>();
  if (!may_leave_out() && std::find(used, used + parameters_.size(), 0) != used + parameters_.size())
    refuse_unused([&](size_t i) { return !used[i]; });
  prepare({});
  unfinished_ = true;
  for (size_t i = 0; i < parameters_.size(); ++i) mark_ready(i);
  finish();
  expecting_ = false;
}

void Reducer::finish() {
  expecting_ = false;
  const auto begin = Clock::now();
  for (Bucket& b : buckets_) {
    Tensor result = b.reduction->wait();
    WT_CHECK(result.numel() == b.buffer.numel(), ShapeError, kName, ": a communication hook gave ", result,
             " back for a bucket of ", b.buffer);
    if (!same_place(result, b.buffer)) {
      result = raw_contiguous(result);
      raw_copy(b.buffer, alias(result, b.buffer.sizes(), {1}, result.offset()));
    }
    b.reduction = nullptr;
  }
  if (count_of_uses_) count_of_uses_->wait({});
  for (size_t i = 0; i < parameters_.size(); ++i) deliver(i);
  raw_fill(uses_, 0);
  unfinished_ = false;
  ++stats_.passes;
  stats_.wait_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  stats_.total_wait_seconds += stats_.wait_seconds;
  if (finds_unused()) {  // a second loss of these outputs, through the parameters that are left, is averaged,
                         // too
    again_ = true;
    expect_pass();
  }
}

// A parameter that no rank used keeps the gradient that it had.
void Reducer::deliver(size_t parameter) {
  if (may_leave_out() && !uses_.data_as<uint8_t>()[parameter]) return;
  const Place at = places_[parameter];
  const Tensor& view = buckets_[at.bucket].views[at.position];
  Tensor& gradient = make_meta(parameters_[parameter]).grad;
  if (!gradient.defined()) {
    gradient = options_.gradients_are_views ? alias(view) : raw_clone(view);
  } else if (!same_place(gradient, view)) {
    before_write(gradient);
    raw_copy(gradient, view);
    gradient.bump_version();
  }
}

}  // namespace warptape::distributed
