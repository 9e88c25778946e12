// Which kernel serves attention where both cuDNN's and our own do it: cuDNN's until a GPU has run our own and
// found it right (kOwnIsProven), then by measurement, once for each shape; or by WARPTAPE_ATTENTION. A few
// queries are our own's without a look at the clock: decoding has one key more with each token, and would
// build a plan and measure for each.
#pragma once

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "kernels/cuda/common/plan_cache.h"
#include "kernels/cuda/common/runtime.h"

namespace warptape::kernels::cuda {

// Set by whoever has seen benchmarks/gpu_day.sh pass its steps of attention on a GPU.
inline constexpr bool kOwnIsProven = false;

enum class AttentionKernels { Measured, Cudnn, Own, Mma, Plain, Default };

inline AttentionKernels attention_kernels_named(const char* name) {
  constexpr std::string_view kNames[] = {"measured", "cudnn", "own", "mma", "plain"};
  const std::string_view asked = name ? name : "";
  if (asked.empty()) return AttentionKernels::Default;
  for (int i = 0; i < 5; ++i)
    if (asked == kNames[i]) return static_cast<AttentionKernels>(i);
  raise_library_error("WARPTAPE_ATTENTION: expected measured, cudnn, own, mma or plain, got '" +
                      std::string(asked) + "'");
}
// What the process' environment asks for. `mma` and `plain` are our own without WGMMA, and without tensor
// cores.
// Not a static variable of the function: tests/emulator takes those for shared arrays, and fills them.
inline std::atomic<int> asked_attention_kernels{-1};
inline AttentionKernels attention_kernels() {
  int asked = asked_attention_kernels.load(std::memory_order_relaxed);
  if (asked < 0) {
    asked = static_cast<int>(attention_kernels_named(std::getenv("WARPTAPE_ATTENTION")));
    asked_attention_kernels.store(asked, std::memory_order_relaxed);
  }
  return static_cast<AttentionKernels>(asked);
}

// As many queries as decoding has, at most: a token of each sequence, or a few that are to be checked.
inline constexpr int64_t kFewQueries = 16;

// What is known of a call before any clock is looked at.
struct AttentionCall {
  AttentionKernels asked;
  bool library;        // cuDNN has a plan
  bool tensor_cores;   // our own kernel is more than the plain one
  bool deterministic;  // the bits may not depend on a clock
  bool captured;       // nothing can be waited for
  bool few = false;    // at most kFewQueries, forward
  bool proven = kOwnIsProven;

  // Whether no plan of cuDNN's has to be built to know that our own kernel is to run.
  bool is_own() const { return leaves_open() ? few : asked != AttentionKernels::Cudnn; }
  bool leaves_open() const {
    return asked == AttentionKernels::Default || asked == AttentionKernels::Measured;
  }
  bool may_be_measured() const {
    return tensor_cores && !deterministic && (proven || asked == AttentionKernels::Measured);
  }
};

// The choice for one shape.
class AttentionChoice {
 public:
  // Whether our own kernel is to run. time(call) are the milliseconds of a call that was made before.
  template <class Time, class Own, class Library>
  bool takes_own(const AttentionCall& call, Time&& time, Own&& own, Library&& library) {
    if (!call.library || call.is_own()) return true;
    if (call.asked == AttentionKernels::Cudnn) return false;
    if (!call.may_be_measured()) return false;
    if (const State state = state_.load(); state != State::Unknown) return state == State::Own;
    if (call.captured) return false;  // and the next call measures
    const bool faster = is_faster(time, own, library);
    state_.store(faster ? State::Own : State::Library);
    return faster;
  }

 private:
  enum class State { Unknown, Library, Own };
  static constexpr int kRounds = 3;

  // By the best of a few rounds in turn, so that a pause of the machine decides nothing.
  template <class Time, class Own, class Library>
  static bool is_faster(Time&& time, Own&& own, Library&& library) {
    own(), library();  // the first calls load code
    float best[2] = {};
    for (int round = 0; round < kRounds; ++round) {
      const float taken[2] = {time(own), time(library)};
      for (int i = 0; i < 2; ++i) best[i] = round == 0 || taken[i] < best[i] ? taken[i] : best[i];
    }
    return best[0] < best[1];
  }
  std::atomic<State> state_{State::Unknown};
};

// cuDNN's graphs and the choices, by all that a graph depends on.
template <size_t N, class Graph>
class AttentionPlans {
  struct Planned {
    std::shared_ptr<Graph> graph;
    AttentionChoice choice;
  };
  PlanCache<N, Planned> plans_;

 public:
  using Key = typename PlanCache<N, Planned>::Key;

  explicit AttentionPlans(size_t capacity) : plans_(capacity) {}
  size_t size() { return plans_.size(); }

  // Runs own(), or library(graph) of the graph that make() builds, which write the same results. call.library
  // is not looked at: the graph says it.
  template <class Make, class Time, class Own, class Library>
  void run(const Key& key, AttentionCall call, Make&& make, Time&& time, Own&& own, Library&& library) {
    if (call.is_own()) return own();
    const std::shared_ptr<Planned> plan = plans_.get(key, [&] {
      auto made = std::make_shared<Planned>();
      made->graph = make();
      return made;
    });
    call.library = plan->graph->refusal.empty();
    auto by_library = [&] { library(*plan->graph); };
    plan->choice.takes_own(call, time, own, by_library) ? own() : by_library();
  }
};

}  // namespace warptape::kernels::cuda
