// In which mode the calls of a compiled function run: recorded, or at once as without torch.compile.
//
// Note [Mode tuner]: what recording gains depends on the machine and on what the function's Python does, so
// it is measured. The first calls are recorded, for they make programs. Then calls of both modes are timed in
// alternation, and the mode with the lower mean stays. A measurement is one call; of a function whose calls
// are followed by backward passes it is what comes until one has run, so that all of a step is compared with
// all of another. It is repeated after some hundred calls, and after twice as many each time that the outcome
// is the same. Calls with grad mode on and off are tuned apart, for training and evaluation do other work.
// Both modes give the same bits: a wrong decision costs time alone.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/export.h"

namespace warptape::graph {

enum class Mode : uint8_t { Recorded, Eager };

class WT_API ModeTuner {
 public:
  struct Measurement {
    Mode mode = Mode::Recorded;
    bool timed = false;  // its time goes to add()
  };
  // What was last measured: means in seconds; 0 before.
  struct Report {
    Mode mode = Mode::Recorded;
    int64_t trials = 0, eager_calls = 0;
    double recorded = 0, eager = 0;
  };

  // The mode of a call that begins.
  Measurement next();
  // Whether a call belongs to the measurement of the `calls` before it, which no backward pass has ended.
  bool continues(Measurement measurement, int calls);
  // A backward pass follows a call. True the first time: measurements are longer from now on.
  bool saw_backward();
  // The time of a measurement; `built`: a program was built in it.
  void add(Mode mode, double seconds, bool built);
  // From now on calls are recorded: their time cannot be measured here.
  void always_record();
  Report report() const;

 private:
  void decide();
  void restart();

  mutable std::mutex mutex_;
  Report report_;
  bool trying_ = false, fixed_ = false, has_backward_ = false;
  int until_trial_ = 3, interval_ = 0;    // calls
  int measured_ = 0, skipped_ = 0;        // of this trial
  std::vector<double> recorded_, eager_;  // seconds of its calls, sorted
};

// Of one compiled function: its calls without grad mode, and with it.
class WT_API ModeTuners {
 public:
  ModeTuner& of(bool grad_mode) { return tuners_[grad_mode]; }
  void always_record();
  // Counts of all calls; the means are those with grad mode where they were measured.
  ModeTuner::Report report() const;

 private:
  std::array<ModeTuner, 2> tuners_;
};

}  // namespace warptape::graph
