// What a region runs: the recorded calls, by a program that is built once for all calls with the same key.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "graph/lower/rows.h"
#include "graph/record/rematerialize.h"

namespace warptape::graph {

class Captured;
class Memories;

// What a step is the last to need.
struct Ends {
  std::vector<uint32_t> calls;
  // Storages whose contents are computed again: the call, and the number of its output.
  std::vector<std::pair<uint32_t, uint32_t>> storages;
};

struct WT_API Executable {
  std::vector<uint64_t> key;  // of the calls that it is for: see key_of()
  Program program;
  std::vector<std::unique_ptr<Chain>> chains;    // of each step; null where one instruction runs alone
  std::vector<std::unique_ptr<RowStep>> rows;    // likewise, or where the step is a chain; or its prologue
  std::vector<std::unique_ptr<Tuning>> tunings;  // of each step with an epilogue, where they are tuned
  std::vector<Ends> ends;                        // of each step
  std::vector<uint32_t> dead;                    // calls of no step
  // Where a chain waits for its kernel: the instructions one by one.
  std::vector<Step> apart;
  std::vector<Ends> ends_apart;
  std::atomic<int64_t> runs{0};
  int64_t found = 0;  // when it was last found, in calls of Programs::find()
  double build_seconds = 0;
  std::shared_ptr<Captured> captured;  // for mode="reduce-overhead", on CUDA
  bool on_device = false;              // it uses memory of a device
  // See Note [Rematerialization].
  std::vector<RematCall> remat_calls;
  std::vector<uint32_t> rematerializable;
  std::shared_ptr<UseSummary> use_summary;
  std::shared_ptr<Executable> rematerializing;  // its variant that leaves values out, when it is known which

  void run(std::vector<Call>& calls) const;
  // Of each call. On the CPU.
  std::vector<CallUse> uses(size_t calls) const;
  // Why instructions run one by one, or null; the same and why there is no captured graph, as text.
  const char* problem() const;
  std::string problem_text() const;
  // What tuning found, a line for each step that is done with.
  std::vector<std::string> tuned() const;
  bool waits() const;  // for a kernel that will be there

 private:
  void run_step(const Step& step, const Chain* chain, Tuning* tuning, const RowStep* rows, const Ends& ends,
                std::vector<Call>& calls) const;
};

// The programs of a compiled function, by the cache key of the calls: sizes, strides, which results are held.
class WT_API Programs : public ProgramOptions {
 public:
  static constexpr size_t kMost = 256;  // of more, the one that was not found for longest goes
  // The program for calls with this key, built where there is none; numbers the memories. With
  // `may_rematerialize`, one that may leave values to backward.
  std::shared_ptr<Executable> find(const std::vector<Call>& calls, Memories& memories,
                                   bool may_rematerialize);
  // Runs the calls by it, which gives all memories their contents but those that the Remats will compute.
  static std::vector<std::unique_ptr<Remat>> run(Executable& program, std::vector<Call>& calls);
  // In the order in which they were built. The list grows while other threads call.
  std::vector<std::shared_ptr<Executable>> all() const;
  bool rematerializes = true, captures = false;

 private:
  std::shared_ptr<Executable> rematerializing(const std::shared_ptr<Executable>& program,
                                              const std::vector<Call>& calls, const Memories& memories);

  void evict_oldest();

  mutable std::mutex mutex_;
  int64_t finds_ = 0;
  std::unordered_multimap<uint64_t, std::shared_ptr<Executable>> by_hash_;
  std::vector<std::shared_ptr<Executable>> all_;
  std::shared_ptr<Executable> last_;  // that was found: often the next one, too
};

}  // namespace warptape::graph
