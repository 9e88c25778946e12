// Slots "prepare_chain" and "wait_for_chains": kernels of chains are made one after the other, on a thread of
// their own.
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "kernels/cuda/common/relaxed_capture.h"
#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/fused/chain_compile.h"
#include "kernels/cuda/fused/chain_source.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

void fail(ChainKernel& k, const std::string& why) {
  k.text = why;
  k.problem.store(k.text.c_str(), std::memory_order_release);
  k.failed.store(true, std::memory_order_release);
}

std::string release_text(int release) {
  return std::to_string(release / 100) + "." + std::to_string(release % 100);
}

void make(ChainKernel& k) {
  int runtime = 0;
  check(cudaRuntimeGetVersion(&runtime), "chain");
  const int built = runtime / 1000 * 100 + runtime % 1000 / 10, release = nvrtc_release();
  if (!k.exact && release != built)
    return fail(k, "NVRTC is of CUDA " + release_text(release) + " and the ops' own kernels of " +
                       release_text(built) +
                       ", whose functions may differ in the last bit: `pip install "
                       "nvidia-cuda-nvrtc==" +
                       release_text(built) + ".*`");
  const std::string code = compile_kernel(k.source, capability(k.device));
  use_device(k.device);
  RelaxedCapture beside_captures;  // of other threads, which loading does not disturb
  cudaLibrary_t library = nullptr;
  check(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "chain");
  cudaKernel_t found = nullptr;
  check(cudaLibraryGetKernel(&found, library, "chain"), "chain");
  k.element = found;
  if (k.width > 1) {
    check(cudaLibraryGetKernel(&found, library, "chain_wide"), "chain");
    k.wide = found;
  }
  k.problem.store(nullptr, std::memory_order_release);
}

// Compiles what it is given, in order, on a thread that lasts. At the end of the process the bindings wait
// for the kernel that it is at.
class Compiler {
 public:
  static Compiler& get() {
    static auto* it = new Compiler;
    return *it;
  }

  PreparedChain* prepare(const LaunchContext& ctx, const ChainPlan& plan) {
    std::string key = chain_key(plan) + static_cast<char>(ctx.device_index);
    std::lock_guard lock(mutex_);
    std::unique_ptr<ChainKernel>& k = kernels_[key];
    if (k) return k.get();
    k = std::make_unique<ChainKernel>();
    k->device = ctx.device_index;
    k->width = chain_width(plan);
    k->problem = "its kernel is being compiled";
    for (int i = 0; i < plan.steps; ++i) k->exact &= plan.step[i].formula->exact;
    if (!chain_dims(plan)) {
      fail(*k, "it has more than 8 dims");
    } else {
      k->source = chain_source(plan);
      waiting_.push_back(k.get());
      if (!std::exchange(works_, true)) std::thread([this] { work(); }).detach();
      changed_.notify_all();
    }
    return k.get();
  }

  void wait(bool give_up) {
    if (getpid() != process_) return;  // a forked child, without the thread
    std::unique_lock lock(mutex_);
    if (give_up)
      while (waiting_.size() > 1) {
        fail(*waiting_.back(), "the process ends");
        waiting_.pop_back();
      }
    changed_.wait(lock, [&] { return waiting_.empty(); });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !waiting_.empty(); });
      ChainKernel* k = waiting_.front();
      lock.unlock();
      try {
        make(*k);
      } catch (const std::exception& e) {
        fail(*k, e.what());
      }
      lock.lock();
      waiting_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ChainKernel*> waiting_;
  std::map<std::string, std::unique_ptr<ChainKernel>> kernels_;
  bool works_ = false;
  const pid_t process_ = getpid();
};

PreparedChain* prepare_chain(const LaunchContext& ctx, const ChainPlan& plan) {
  return Compiler::get().prepare(ctx, plan);
}
WT_KERNEL(prepare_chain, prepare_chain);

void wait_for_chains(const LaunchContext&, bool give_up) { Compiler::get().wait(give_up); }
WT_KERNEL(wait_for_chains, wait_for_chains);

}  // namespace
}  // namespace warptape::kernels::cuda
