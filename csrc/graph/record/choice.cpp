#include "graph/record/choice.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace warptape::graph {
namespace {

constexpr int kInterval = 500, kMostInterval = 16000;  // calls from one trial to the next
constexpr size_t kTimes = 6;                           // of each way, where fewer do not decide
constexpr int kMostBuilds = 8;        // calls of a trial whose time is not counted because they made programs
constexpr int kMostCalls = 32;        // of a turn, where no backward pass comes after all
constexpr double kClearly = 2;        // times as long in each call: two of them decide
constexpr double kNegligible = 1.02;  // noting needs less memory, so the other way has to gain more than this

// The mean without the longest, in which the machine may have done something else. Not the median: where
// short and long calls take turns it may be a short one's of one way and a long one's of the other.
double mean(const std::vector<double>& sorted) {
  return std::accumulate(sorted.begin(), sorted.end() - 1, 0.0) / static_cast<double>(sorted.size() - 1);
}

// Whether all times in `a`, times `factor`, are below those in `b`.
bool below(const std::vector<double>& a, const std::vector<double>& b, double factor) {
  return a.back() * factor < b.front();
}

}  // namespace

Choice::Turn Choice::next() {
  const std::lock_guard lock(mutex_);
  if (!trying_ && (fixed_ || until_trial_-- > 0)) {
    report_.eager_calls += report_.way == Way::Eager;
    return {report_.way, false};
  }
  if (!trying_) restart();
  trying_ = true;
  // Two and two, so that of calls of two or three kinds that take turns themselves each kind goes both ways
  // equally often.
  const int place = turns_++ % 4;
  const Way way = place == 0 || place == 3 ? Way::Noted : Way::Eager;
  report_.eager_calls += way == Way::Eager;
  return {way, true};
}

void Choice::restart() {
  turns_ = skipped_ = 0;
  noted_.clear();
  eager_.clear();
}

bool Choice::continues(Turn turn, int calls) {
  const std::lock_guard lock(mutex_);
  if (!has_backward_ || calls >= kMostCalls) return false;
  report_.eager_calls += turn.way == Way::Eager;
  return true;
}

bool Choice::saw_backward() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_backward_, true)) return false;
  restart();
  return true;
}

void Choice::add(Way way, double seconds, bool built) {
  const std::lock_guard lock(mutex_);
  if (!trying_ || (built && skipped_++ < kMostBuilds)) return;
  auto& times = way == Way::Noted ? noted_ : eager_;
  times.insert(std::ranges::upper_bound(times, seconds), seconds);
  decide();
}

void Choice::decide() {
  const size_t count = std::min(noted_.size(), eager_.size());
  if (count < 2) return;
  const bool clear = below(noted_, eager_, kClearly) || below(eager_, noted_, kClearly);
  const bool apart = below(noted_, eager_, 1) || below(eager_, noted_, 1);
  if (count < kTimes && !clear && !(apart && count * 2 >= kTimes)) return;
  report_.noted = mean(noted_);
  report_.eager = mean(eager_);
  const Way before = report_.way;
  report_.way = report_.eager * kNegligible < report_.noted ? Way::Eager : Way::Noted;
  interval_ = report_.trials++ && report_.way == before ? std::min(2 * interval_, kMostInterval) : kInterval;
  until_trial_ = interval_;
  trying_ = false;
}

void Choice::keep_noting() {
  const std::lock_guard lock(mutex_);
  fixed_ = true;
  trying_ = false;
  report_.way = Way::Noted;
}

Choice::Report Choice::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

void Choices::keep_noting() {
  for (Choice& c : choices_) c.keep_noting();
}

Choice::Report Choices::report() const {
  const Choice::Report without = choices_[false].report(), with = choices_[true].report();
  Choice::Report out = with.trials ? with : without;
  out.trials = without.trials + with.trials;
  out.eager_calls = without.eager_calls + with.eager_calls;
  return out;
}

}  // namespace warptape::graph
