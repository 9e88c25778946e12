// What the emulator's own files share.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

// Runs every block of a grid, one after the other; the threads of a block as fibers. `cluster` neighbours
// along x run together.
void run_grid(const char* name, dim3 grid, dim3 block, size_t shared_bytes, unsigned cluster,
              const Work& body);

// What the next launch is called, for messages.
const char* next_launch_name();
void count_launch(const void* kernel, unsigned threads, size_t shared);

// For what watches kernels: whether one runs, the thread that runs, its name, and where its stack and shared
// memory lie.
bool runs_kernel();
unsigned thread_of_block();
std::string thread_name(unsigned thread);
bool is_own_stack(const void* p);
bool is_shared_memory(const void* p);
char* shared_window();

// Order of threads, blocks and streams, by WARPTAPE_EMULATOR_ORDER.
enum class Order { Forward, Reverse, Shuffled };
Order order();
uint64_t random_bits();
// The i-th of n in that order; `salt` is one draw of random_bits() for all i of one permutation.
uint64_t ith(Order order, uint64_t i, uint64_t n, uint64_t salt);

// ---- what devices did, for the emulated CUPTI ----
// The number of a call while activities are recorded, else 0; and what it led to once a stream has run it.
uint32_t begin_activity();
struct Activity {
  enum class Kind { Kernel, Copy, Fill } kind;
  uint32_t call = 0;
  uint64_t start = 0;
  int device = 0;
  uint32_t stream = 0;
  std::string name;
  uint64_t bytes = 0;
  int from = 0, to = 0;  // of a copy: as Place::device
};
uint64_t activity_clock();
void end_activity(const Activity& activity);
void* cupti_symbol(const std::string& name);

// Where memory lies: -1 is pageable memory of the host, -2 page-locked memory, else a device.
inline constexpr int kPageable = -1, kPageLocked = -2;
struct Place {
  int device = kPageable;
  size_t bytes = 0;  // from the pointer on to the end of its allocation
};
Place place_of(const void* p);
inline bool lies_on(int device, const void* p, size_t bytes) {
  const Place place = place_of(p);
  return place.device == device && place.bytes >= bytes;
}
// Device memory can be touched only while one of these lives, if WARPTAPE_EMULATOR_PROTECT asks for it.
class Access {
 public:
  Access();
  ~Access();
};

cudaError_t allocate_device(int device, void** p, size_t bytes);
cudaError_t free_device(void* p);
size_t device_limit();
size_t device_used(int device);
cudaError_t allocate_host(void** p, size_t bytes);
cudaError_t free_host(void* p);

// ---- streams ----
// A capture: what its streams are given is recorded.
struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode{};
  size_t thread = 0;  // that began it
  CUstream_st* origin = nullptr;
  bool active = true, invalid = false;
  std::vector<Work> work;
  std::vector<CUstream_st*> streams;
};
// How much of each stream's work lies before a point: in a capture it tells whether what forked was joined.
using Clock = std::map<CUstream_st*, size_t>;
// See Note [Lifetimes].
void merge(Clock& into, const Clock& from);
void host_waited(const Clock& clock);
// Addresses of device memory among the bytes of an argument are kept until taken_addresses().
void take_addresses(const void* argument, size_t bytes);
std::vector<const void*> taken_addresses();
void note_uses(CUstream_st* stream, const std::vector<const void*>& addresses, const std::string& name);
void forget_uses(const void* p, size_t bytes);
// One recording of an event; or what no stream brings about, whose `help` moves on what does.
struct Record {
  CUstream_st* stream = nullptr;
  Work help = nullptr;
  bool done = false;
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<Capture> capture;
  Clock clock;
};
struct Task {
  Work run;
  std::shared_ptr<Record> wait;  // or null
};

// Every call of the runtime: takes the lock, refuses without a usable driver or on a device in which a kernel
// died, and remembers the error for cudaGetLastError.
class Mutex : public std::recursive_mutex {
 public:
  void lock() { std::recursive_mutex::lock(), ++depth_; }
  void unlock() { --depth_, std::recursive_mutex::unlock(); }
  int depth() const { return depth_; }

 private:
  int depth_ = 0;
};
std::unique_lock<Mutex> lock();
void pause();  // lets other threads take the lock for a moment
cudaError_t remember(cudaError_t error);
cudaError_t usable(bool needs_device = true);
template <class F>
cudaError_t call(F&& body) {
  auto held = lock();
  if (cudaError_t e = usable(); e != cudaSuccess) return remember(e);
  cudaError_t e = body();
  if (e == cudaSuccess) e = usable();  // what ran meanwhile may have died
  return remember(e);
}

int current_device();
int device_count();
cudaError_t& device_fault(int device);      // stays for the life of the process
CUstream_st* resolve(cudaStream_t stream);  // null if there is no such stream
CUstream_st* default_stream(int device);
cudaError_t push(CUstream_st* stream, Task task);
cudaError_t enqueue_wait(cudaStream_t stream, std::shared_ptr<Record> record);
void step(CUstream_st* stream);  // runs one task, if it can
void drain(CUstream_st* stream);
void drain_device(int device);
// For calls that CUDA refuses while somebody captures: ends those captures.
cudaError_t unsafe_call();
cudaError_t invalidate(CUstream_st* stream);
bool capturing(int device);

}  // namespace emulator

struct CUstream_st {
  int device = 0, priority = 0;
  unsigned flags = 0;
  std::deque<emulator::Task> queue;
  bool waiting = false;  // a thread is at its first task, which waits
  std::shared_ptr<emulator::Capture> capture;
  emulator::Clock clock;  // of the capture
  emulator::Clock order;  // of all other work
  uint32_t number() const { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(this) >> 4); }
};
struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<emulator::Record> last;
};
using EmulatedGraph = std::shared_ptr<const std::vector<emulator::Work>>;
struct CUgraph_st {
  EmulatedGraph work;
};
struct CUgraphExec_st {
  int device = 0;
  EmulatedGraph work;
};
