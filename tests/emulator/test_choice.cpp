// The choice between cuDNN's attention and our own, by a clock that the test sets: prints the line of what is
// not as it must be and exits with 1.
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/attention/attention_choice.h"

namespace warptape::kernels::cuda {
void raise_library_error(const std::string& text) { throw std::runtime_error(text); }

namespace {

#define EXPECT(what)                            \
  do {                                          \
    if (!(what)) {                              \
      printf("line %d: %s\n", __LINE__, #what); \
      return 1;                                 \
    }                                           \
  } while (false)

// Times of the calls in turn: of our own kernel, of cuDNN's.
struct Machine {
  std::vector<float> own_times, library_times;
  int own_calls = 0, library_calls = 0;
  AttentionChoice choice;

  bool call(const AttentionCall& call) {
    auto own = [&] { ++own_calls; };
    auto library = [&] { ++library_calls; };
    auto time = [&](auto& kernel) {
      const int before = own_calls;
      kernel();
      const bool is_own = own_calls > before;  // the first call of each was not timed
      const auto& times = is_own ? own_times : library_times;
      const auto at = size_t(is_own ? own_calls : library_calls) - 2;
      return times[at % times.size()];
    };
    return choice.takes_own(call, time, own, library);
  }
  int calls() const { return own_calls + library_calls; }
};

// Tokens of a decoding, each with one key more: how many plans were built, and calls measured.
struct Decoding {
  struct Graph {
    std::string refusal;
  };
  AttentionPlans<3, Graph> plans{1024};
  int built = 0, measured = 0, own_calls = 0, library_calls = 0;

  void run(AttentionCall call, int64_t queries, int64_t keys) {
    call.few = queries <= kFewQueries;
    auto make = [&] {
      ++built;
      return std::make_shared<Graph>();
    };
    auto time = [&](auto& kernel) {
      ++measured;
      kernel();
      return 1.0f;
    };
    plans.run({8, queries, keys}, call, make, time, [&] { ++own_calls; }, [&](Graph&) { ++library_calls; });
  }
};

int decode(const AttentionCall& usual, const AttentionCall& by_cudnn) {
  Decoding d;
  d.run(usual, 100, 100);  // the prompt
  const int built = d.built, measured = d.measured, library_calls = d.library_calls;
  EXPECT(built == 1 && measured == 6 && d.plans.size() == 1);
  for (int token = 1; token <= 64; ++token) d.run(usual, 1, 100 + token);
  d.run(usual, kFewQueries, 200);
  EXPECT(d.built == built && d.measured == measured && d.plans.size() == 1);
  EXPECT(d.library_calls == library_calls);
  d.run(usual, kFewQueries + 1, 200);
  EXPECT(d.built == 2);
  d.run(by_cudnn, 1, 200);  // who asks for it gets it
  EXPECT(d.built == 3 && d.plans.size() == 3);
  return 0;
}

int run() {
  using enum AttentionKernels;
  const AttentionCall usual{Measured, true, true, false, false};
  auto with = [&](auto change) {
    AttentionCall c = usual;
    change(c);
    return c;
  };
  {  // the faster one, and it is measured once
    Machine fast{{1}, {2}, 0, 0, {}}, slow{{2}, {1}, 0, 0, {}};
    EXPECT(fast.call(usual) && fast.own_calls == 4 && fast.library_calls == 4);
    fast.own_times = {9};
    EXPECT(fast.call(usual) && fast.calls() == 8);
    EXPECT(!slow.call(usual) && !slow.call(usual) && slow.calls() == 8);
  }
  {  // a pause in one round decides nothing; of equals cuDNN's runs
    Machine paused{{1, 50, 1}, {2}, 0, 0, {}}, equal{{1}, {1}, 0, 0, {}};
    EXPECT(paused.call(usual));
    EXPECT(!equal.call(usual));
  }
  {  // nothing is measured while the stream is captured, and the next call does
    Machine m{{1}, {2}, 0, 0, {}};
    const AttentionCall captured = with([](AttentionCall& c) { c.captured = true; });
    EXPECT(!m.call(captured) && m.calls() == 0);
    EXPECT(m.call(usual) && m.calls() == 8);
    EXPECT(m.call(captured));
  }
  {  // the clock is not looked at
    Machine m{{1}, {2}, 0, 0, {}};
    EXPECT(!m.call(with([](AttentionCall& c) { c.deterministic = true; })));
    EXPECT(!m.call(with([](AttentionCall& c) { c.tensor_cores = false; })));
    EXPECT(m.call(with([](AttentionCall& c) { c.library = false; })));
    EXPECT(!m.call(with([](AttentionCall& c) { c.asked = Cudnn; })));
    EXPECT(m.call(with([](AttentionCall& c) { c.asked = Cudnn, c.library = false; })));
    for (AttentionKernels asked : {Own, Mma, Plain})
      EXPECT(m.call(with([&](AttentionCall& c) { c.asked = asked, c.deterministic = true; })));
    EXPECT(m.calls() == 0);
  }
  {  // who asks for our own gets no plan
    Decoding d;
    d.run(with([](AttentionCall& c) { c.asked = Own; }), 100, 100);
    EXPECT(d.built == 0 && d.own_calls == 1);
  }
  {  // our own kernels are not measured before they were proven, unless that is asked for
    Machine m{{1}, {2}, 0, 0, {}};
    EXPECT(!m.call(with([](AttentionCall& c) { c.asked = Default, c.proven = false; })) && m.calls() == 0);
    EXPECT(m.call(with([](AttentionCall& c) { c.asked = Default, c.proven = false, c.library = false; })));
    EXPECT(m.call(with([](AttentionCall& c) { c.asked = Default, c.proven = true; })) && m.calls() == 8);
    Machine asked{{1}, {2}, 0, 0, {}};
    EXPECT(asked.call(with([](AttentionCall& c) { c.asked = Measured, c.proven = false; })));
    Decoding d;
    d.run(with([](AttentionCall& c) { c.asked = Default, c.proven = false; }), 1, 100);
    EXPECT(d.built == 0 && d.own_calls == 1);
  }
  if (decode(usual, with([](AttentionCall& c) { c.asked = Cudnn; }))) return 1;
  EXPECT(attention_kernels_named(nullptr) == Default && attention_kernels_named("") == Default);
  EXPECT(attention_kernels_named("cudnn") == Cudnn && attention_kernels_named("plain") == Plain);
  try {
    attention_kernels_named("fast");
    EXPECT(!"refused");
  } catch (const std::runtime_error& e) {
    EXPECT(std::string(e.what()).find("expected measured, cudnn, own, mma or plain") != std::string::npos);
  }
  return 0;
}

}  // namespace
}  // namespace warptape::kernels::cuda

int main() { return warptape::kernels::cuda::run(); }
