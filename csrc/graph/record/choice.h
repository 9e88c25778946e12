// Which of its two ways a compiled function takes: its calls are noted, or run at once as without
// torch.compile.
//
// Note [Choice]: what noting gains depends on the machine and on what the function's Python does, so it is
// measured. The first calls are noted, for they make programs. Then both ways are timed in turns, and the way
// with the lower mean stays. A turn is one call; of a function whose calls are followed by backward passes it
// is what comes until one has run, so that all of a step is compared with all of another. It is measured
// again after some hundred calls, and after twice as many each time that the outcome is the same. Calls with
// grad mode on and off choose apart, for training and evaluation do other work. Both ways give the same bits:
// a wrong choice costs time alone.
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
  // Whether a call belongs to the turn of the `calls` before it, which no backward pass has ended.
  bool continues(Turn turn, int calls);
  // A backward pass follows a call. True the first time: turns are longer from now on.
  bool saw_backward();
  // The time of a turn that was to be timed; `built`: a program was made in it.
  void add(Way way, double seconds, bool built);
  // From now on calls are noted: their time cannot be measured here.
  void keep_noting();
  Report report() const;

 private:
  void decide();
  void restart();

  mutable std::mutex mutex_;
  Report report_;
  bool trying_ = false, fixed_ = false, has_backward_ = false;
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
