// Threads that run one program at once, again and again anew: capi_threads PROGRAM THREADS RUNS OPENS. The
// program takes a float32[8, 16]. Fails where a run fails or a thread's results differ from its first ones'.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "warptape.h"

int main(int, char** argv) {
  const int threads = std::atoi(argv[2]), runs = std::atoi(argv[3]), opens = std::atoi(argv[4]);
  wt_set_num_threads(1);
  std::atomic<long> wrong{0};
  std::vector<std::vector<char>> first(static_cast<size_t>(threads));
  const auto work = [&](wt_program* program, int t, std::atomic<int>& ready) {
    const std::vector<float> x(8 * 16, 0.01f * static_cast<float>(t + 1));
    const int64_t sizes[] = {8, 16};
    const wt_tensor in{WT_FLOAT32, 2, sizes, x.data()};
    for (++ready; ready < threads;) std::this_thread::yield();
    for (int r = 0; r < runs; ++r) {
      wt_result* result = wt_program_run(program, &in, 1);
      if (!result) {
        ++wrong;
        continue;
      }
      const wt_tensor out = wt_result_tensor(result, 0);
      const auto* bytes = static_cast<const char*>(out.data);
      std::vector<char> found(bytes,
                              bytes + sizeof(float) * static_cast<size_t>(out.sizes[0] * out.sizes[1]));
      auto& expected = first[static_cast<size_t>(t)];
      if (expected.empty()) expected = found;
      wrong += found != expected;
      wt_result_free(result);
    }
  };
  for (int o = 0; o < opens; ++o) {
    wt_program* program = wt_program_open(argv[1]);
    if (!program) return 2;
    std::atomic<int> ready{0};
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) all.emplace_back(work, program, t, std::ref(ready));
    for (std::thread& t : all) t.join();
    wt_program_close(program);
  }
  std::printf("%ld wrong\n", wrong.load());
  return wrong != 0;
}
