// A program as a CUDA graph, for mode="reduce-overhead": its kernels are launched together.
//
// Note [Captured programs]: a captured graph has addresses, numbers and arguments in it, so it stands for the
// calls only while these are the same; other calls run as ever. What the program reads lies in memory of the
// graph's own, to which each run copies it, but for what had the same address in the runs before (parameters)
// and what is written in place. What is seen outside is copied from the graph's memory to new memory, so that
// the next run does not change it. Calls are captured after some runs, first on trial with copies of them:
// what cannot be captured then runs as ever.
#pragma once

#include <mutex>
#include <string>

#include "core/device_runtime.h"
#include "graph/lower/program.h"

namespace warptape::graph {

class Captured {
 public:
  Captured() = default;
  ~Captured();
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  // Runs the calls by the graph, or as the program does.
  void run(const Executable& program, std::vector<Call>& calls);
  int64_t replays() const { return replays_; }
  // Why there is no graph, or empty.
  std::string problem() const;

 private:
  enum class State : uint8_t { Watching, Tried, Ready, Refused };
  struct Memory {
    bool in, out, fixed;      // fixed: written in place, where others see it
    bool copied = false;      // for each run, as its address varies
    void* address = nullptr;  // in the last run
    Ref<Storage> own;         // the graph's
  };
  using Storages = std::vector<Ref<Storage>>;

  bool look_at(const Program& program);
  bool same(const Program& program, const std::vector<Call>& calls, const Storages& storages);
  bool try_out(const Executable& program, const std::vector<Call>& calls, const Storages& storages);
  void capture(const Executable& program, std::vector<Call>& calls, const Storages& storages);
  void replay(const Storages& storages);
  void record(const Executable& program, std::vector<Call>& calls, const Storages& storages);
  void forget();
  void give_up(std::string why);

  mutable std::mutex mutex_;
  State state_ = State::Watching;
  std::string problem_;
  std::string arguments_;  // of the last run
  std::vector<Memory> memories_;
  Device device_;
  StreamHandle stream_ = nullptr;  // of the last run
  GraphHandle graph_ = nullptr;
  int alike_ = 0, unlike_ = 0;  // runs with the arguments of the run before them, others
  int64_t replays_ = 0;
};

}  // namespace warptape::graph
