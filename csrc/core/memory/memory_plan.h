// The CPU memory of runs that allocate alike: recorded once, then laid out in one block.
//
// A cache of freed blocks serves each size from blocks of that size, so that what it holds is the sum of the
// most of each size; one block with places chosen by lifetimes is not much larger than what lives at once.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/export.h"

namespace warptape {

// What a run allocated, in order, and where each piece lies in the block.
class WT_API MemoryPlan {
 public:
  static constexpr size_t kElsewhere = SIZE_MAX;  // of what was not freed in the run
  struct Piece {
    size_t bytes = 0;
    size_t from = 0, to = kElsewhere;  // when it was allocated and freed, in events of the run
    size_t offset = kElsewhere;
  };
  // Places each piece that was freed, the largest first, in the lowest gap among those that live at the same
  // time (Pisarchyk and Lee 2020, greedy by size).
  explicit MemoryPlan(std::vector<Piece> pieces);

  const std::vector<Piece>& pieces() const { return pieces_; }
  size_t bytes() const { return bytes_; }

 private:
  std::vector<Piece> pieces_;
  size_t bytes_ = 0;
};

// While it lives, what this thread allocates in host memory is recorded, or served from a plan's block where
// it comes in the plan's order. All else comes from the allocator. The block is freed with its last piece.
class WT_API PlannedRun {
 public:
  PlannedRun();  // records
  explicit PlannedRun(std::shared_ptr<const MemoryPlan> plan);
  ~PlannedRun();
  PlannedRun(const PlannedRun&) = delete;
  PlannedRun& operator=(const PlannedRun&) = delete;

  static PlannedRun* current();  // of the thread; null outside
  std::shared_ptr<const MemoryPlan> recorded();
  // Whether every piece was asked for as planned.
  bool as_planned() const { return next_ == asked_; }

  // Called by the allocator.
  void* allocate(size_t bytes);             // null: from elsewhere
  void note(const void* p, size_t bytes);   // what came from elsewhere
  void note_freed(const void* p) noexcept;  // likewise
  // Whether the memory is of a run's block, which takes it back.
  static bool release(const void* p) noexcept;

 private:
  struct Block;
  PlannedRun* outer_;
  std::shared_ptr<const MemoryPlan> plan_;
  Block* block_ = nullptr;
  size_t next_ = 0, asked_ = 0, events_ = 0;
  std::vector<MemoryPlan::Piece> pieces_;
  std::unordered_map<const void*, size_t> places_;
};

}  // namespace warptape
