#include "graph/record/mode_tuner.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace warptape::graph {
namespace {

constexpr int kInterval = 500, kMostInterval = 16000;  // calls from one trial to the next
constexpr size_t kTimes = 6;                           // of each mode, where fewer do not decide
constexpr int kMostBuilds = 8;  // calls of a trial whose time is not counted because they built programs
constexpr int kMostCalls = 32;  // of a measurement, where no backward pass comes after all
constexpr double kClearly = 2;  // times as long in each call: two of them decide
constexpr double kNegligible =
    1.02;  // recording needs less memory, so eager calls have to gain more than this

// The mean without the longest, in which the machine may have done something else. Not the median: where
// short and long calls alternate it may be a short one's of one mode and a long one's of the other.
double mean(const std::vector<double>& sorted) {
  return std::accumulate(sorted.begin(), sorted.end() - 1, 0.0) / static_cast<double>(sorted.size() - 1);
}

// Whether all times in `a`, times `factor`, are below those in `b`.
bool below(const std::vector<double>& a, const std::vector<double>& b, double factor) {
  return a.back() * factor < b.front();
}

}  // namespace

ModeTuner::Measurement ModeTuner::next() {
  const std::lock_guard lock(mutex_);
  if (!trying_ && (fixed_ || until_trial_-- > 0)) {
    report_.eager_calls += report_.mode == Mode::Eager;
    return {report_.mode, false};
  }
  if (!trying_) restart();
  trying_ = true;
  // Two and two, so that of calls of two or three kinds that alternate themselves each kind runs in both
  // modes equally often.
  const int phase = measured_++ % 4;
  const Mode mode = phase == 0 || phase == 3 ? Mode::Recorded : Mode::Eager;
  report_.eager_calls += mode == Mode::Eager;
  return {mode, true};
}

void ModeTuner::restart() {
  measured_ = skipped_ = 0;
  recorded_.clear();
  eager_.clear();
}

bool ModeTuner::continues(Measurement measurement, int calls) {
  const std::lock_guard lock(mutex_);
  if (!has_backward_ || calls >= kMostCalls) return false;
  report_.eager_calls += measurement.mode == Mode::Eager;
  return true;
}

bool ModeTuner::saw_backward() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_backward_, true)) return false;
  restart();
  return true;
}

void ModeTuner::add(Mode mode, double seconds, bool built) {
  const std::lock_guard lock(mutex_);
  if (!trying_ || (built && skipped_++ < kMostBuilds)) return;
  auto& times = mode == Mode::Recorded ? recorded_ : eager_;
  times.insert(std::ranges::upper_bound(times, seconds), seconds);
  decide();
}

void ModeTuner::decide() {
  const size_t count = std::min(recorded_.size(), eager_.size());
  if (count < 2) return;
  const bool clear = below(recorded_, eager_, kClearly) || below(eager_, recorded_, kClearly);
  const bool apart = below(recorded_, eager_, 1) || below(eager_, recorded_, 1);
  if (count < kTimes && !clear && !(apart && count * 2 >= kTimes)) return;
  report_.recorded = mean(recorded_);
  report_.eager = mean(eager_);
  const Mode before = report_.mode;
  report_.mode = report_.eager * kNegligible < report_.recorded ? Mode::Eager : Mode::Recorded;
  interval_ = report_.trials++ && report_.mode == before ? std::min(2 * interval_, kMostInterval) : kInterval;
  until_trial_ = interval_;
  trying_ = false;
}

void ModeTuner::always_record() {
  const std::lock_guard lock(mutex_);
  fixed_ = true;
  trying_ = false;
  report_.mode = Mode::Recorded;
}

ModeTuner::Report ModeTuner::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

void ModeTuners::always_record() {
  for (ModeTuner& c : tuners_) c.always_record();
}

ModeTuner::Report ModeTuners::report() const {
  const ModeTuner::Report without = tuners_[false].report(), with = tuners_[true].report();
  ModeTuner::Report out = with.trials ? with : without;
  out.trials = without.trials + with.trials;
  out.eager_calls = without.eager_calls + with.eager_calls;
  return out;
}

}  // namespace warptape::graph
