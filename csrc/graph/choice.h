// Which of its two ways a compiled function takes: its calls are noted, or run at once as without
// torch.compile.
//
// Note [Choice]: what noting gains depends on the machine and on what the function's Python does, so it is
// measured. The first calls are noted, for they make programs. Then calls of both ways are timed, each with
// the backward passes that follow it, and the way with the lower mean stays. It is measured again after
// some hundred calls, and after twice as many each time that the outcome is the same. Calls with grad mode on
// and off choose apart, for training and evaluation do other work. Both ways give the same bits: a wrong
// choice costs time alone.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/export.h"

namespace warptape::graph {

enum class Way : uint8_t { Noted, Eager };

class WT_API Choice {
 public:
  struct Turn {
    Way way = Way::Noted;
    bool timed = false;  // the time it takes is to be given to add()
  };
  // What was last measured: means in seconds; 0 before.
  struct Report {
    Way way = Way::Noted;
    int64_t trials = 0, eager_calls = 0;
    double noted = 0, eager = 0;
  };

  // The way of a call that begins.
  Turn next();
  // The time of a call that was to be timed; `built`: a program was made in it.
  void add(Way way, double seconds, bool built);
  // From now on calls are noted: their time cannot be measured here.
  void keep_noting();
  Report report() const;

 private:
  void decide();

  mutable std::mutex mutex_;
  Report report_;
  bool trying_ = false, fixed_ = false;
  int until_trial_ = 3, interval_ = 0;  // calls
  int turns_ = 0, skipped_ = 0;         // of this trial
  std::vector<double> noted_, eager_;   // seconds of its calls, sorted
};

// Of one compiled function: its calls without grad mode, and with it.
class WT_API Choices {
 public:
  Choice& of(bool grad_mode) { return choices_[grad_mode]; }
  void keep_noting();
  // Counts of all calls; the means are those with grad mode where they were measured.
  Choice::Report report() const;

 private:
  std::array<Choice, 2> choices_;
};

}  // namespace warptape::graph
