#include "core/memory/memory_plan.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <utility>

#include "core/context.h"
#include "core/memory/allocator.h"

namespace warptape {
namespace {

constexpr size_t kAlign = 64;

size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

MemoryPlan::MemoryPlan(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  std::vector<size_t> order(pieces_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return pieces_[i].bytes; });
  std::vector<const Piece*> placed;  // by offset
  for (size_t i : order) {
    Piece& p = pieces_[i];
    if (p.to == kElsewhere) continue;
    size_t at = 0;
    for (const Piece* other : placed) {
      if (other->to < p.from || p.to < other->from) continue;
      if (other->offset >= at + rounded(p.bytes)) break;
      at = std::max(at, other->offset + rounded(other->bytes));
    }
    p.offset = at;
    bytes_ = std::max(bytes_, at + rounded(p.bytes));
    placed.insert(std::ranges::upper_bound(placed, at, {}, [](const Piece* q) { return q->offset; }), &p);
  }
}

// Of one run. Guarded by the mutex of all blocks.
struct PlannedRun::Block {
  char* base;
  std::shared_ptr<const MemoryPlan> plan;
  std::vector<size_t> live;  // pieces
  bool running = true;

  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::vector<Block*>& all() {
    static auto* blocks = new std::vector<Block*>;  // tensors may outlive static destruction
    return *blocks;
  }
  static std::atomic<size_t> count;

  // With the mutex held; frees the block when nobody has a part of it.
  void leave_if_unused(std::unique_lock<std::mutex>& lock) {
    if (running || !live.empty()) return;
    std::erase(all(), this);
    --count;
    lock.unlock();
    cpu_allocator().deallocate(base, plan->bytes());
    delete this;
  }
};
std::atomic<size_t> PlannedRun::Block::count{0};

PlannedRun::PlannedRun() : outer_(std::exchange(own_thread_state().planned_run, this)) {}

PlannedRun::PlannedRun(std::shared_ptr<const MemoryPlan> plan)
    : outer_(std::exchange(own_thread_state().planned_run, nullptr)), plan_(std::move(plan)) {
  if (plan_->bytes()) {
    auto block = std::make_unique<Block>(nullptr, plan_);
    block->live.reserve(plan_->pieces().size());
    block->base = static_cast<char*>(cpu_allocator().allocate(plan_->bytes()));
    const std::lock_guard lock(Block::mutex());
    Block::all().push_back(block.get());
    block_ = block.release();
    ++Block::count;
  }
  own_thread_state().planned_run = this;
}

PlannedRun::~PlannedRun() {
  own_thread_state().planned_run = outer_;
  if (!block_) return;
  std::unique_lock lock(Block::mutex());
  block_->running = false;
  block_->leave_if_unused(lock);
}

PlannedRun* PlannedRun::current() { return thread_state().planned_run; }

std::shared_ptr<const MemoryPlan> PlannedRun::recorded() {
  return std::make_shared<MemoryPlan>(std::move(pieces_));
}

void* PlannedRun::allocate(size_t bytes) {
  if (!plan_) return nullptr;
  ++asked_;
  if (next_ >= plan_->pieces().size() || plan_->pieces()[next_].bytes != bytes) return nullptr;
  const size_t piece = next_++;
  const auto& pieces = plan_->pieces();
  if (pieces[piece].offset == MemoryPlan::kElsewhere || !block_) return nullptr;
  const auto begin = [&](size_t i) { return pieces[i].offset; };
  const auto end = [&](size_t i) { return pieces[i].offset + rounded(pieces[i].bytes); };
  const std::lock_guard lock(Block::mutex());
  for (size_t other : block_->live)  // that was freed by now when the plan was recorded
    if (begin(other) < end(piece) && begin(piece) < end(other)) return nullptr;
  block_->live.push_back(piece);
  return block_->base + begin(piece);
}

void PlannedRun::note(const void* p, size_t bytes) {
  if (plan_) return;
  places_[p] = pieces_.size();
  pieces_.push_back({bytes, events_++});
}

void PlannedRun::note_freed(const void* p) noexcept {
  if (plan_) return;
  const auto at = places_.find(p);
  if (at == places_.end()) return;
  pieces_[at->second].to = events_++;
  places_.erase(at);
}

bool PlannedRun::release(const void* p) noexcept {
  if (!Block::count.load(std::memory_order_acquire)) return false;
  std::unique_lock lock(Block::mutex());
  for (Block* b : Block::all()) {
    const auto* at = static_cast<const char*>(p);
    if (at < b->base || at >= b->base + b->plan->bytes()) continue;
    const auto offset = static_cast<size_t>(at - b->base);
    const auto mine = [&](size_t i) { return b->plan->pieces()[i].offset == offset; };
    const auto found = std::ranges::find_if(b->live, mine);
    if (found == b->live.end()) return false;  // the block itself
    b->live.erase(found);
    b->leave_if_unused(lock);
    return true;
  }
  return false;
}

}  // namespace warptape
