#include "distributed/store/store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <thread>

#include "kernels/runtime/interrupt.h"

namespace warptape::distributed {

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File File::duplicate() const {
  int fd = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  WT_CHECK(fd >= 0, DistNetworkError, "distributed: cannot duplicate a file descriptor: ", strerror(errno),
           "; raise the limit of open files (ulimit -n)");
  return File(fd);
}

Store::~Store() = default;

namespace {

int64_t to_number(const std::string& key, const std::string& text) {
  int64_t n = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  WT_CHECK(error == std::errc() && end == text.data() + text.size(), ValueError, "store.add: the key '", key,
           "' holds something that is not a number");
  return n;
}

std::string join(std::span<const std::string> keys) {
  std::string out;
  for (const std::string& k : keys) out += (out.empty() ? "'" : ", '") + k + "'";
  return out;
}

}  // namespace

// Wakes now and then to see whether the work was interrupted.
template <class Ready>
void LocalStore::wait_until(std::unique_lock<std::mutex>& lock, Milliseconds timeout, const std::string& what,
                            Ready ready) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    WT_CHECK(closed_.empty(), DistNetworkError, "store: ", closed_);
    if (ready()) return;
    const auto now = Clock::now();
    WT_CHECK(now < deadline, DistStoreError, "store: waited ", timeout.count() / 1000.0, " s for ", what,
             ", which no rank has set");
    changed_.wait_for(lock, std::min<Clock::duration>(deadline - now, Milliseconds(50)));
    lock.unlock();
    kernels::cpu::poll_interrupt();
    lock.lock();
  }
}

void LocalStore::set(const std::string& key, const std::string& value) {
  std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::string LocalStore::get(const std::string& key, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_until(lock, timeout, "'" + key + "'", [&] { return values_.contains(key); });
  return values_[key];
}

int64_t LocalStore::add(const std::string& key, int64_t amount) {
  std::lock_guard lock(mutex_);
  auto at = values_.find(key);
  int64_t sum = amount + (at == values_.end() ? 0 : to_number(key, at->second));
  values_[key] = std::to_string(sum);
  changed_.notify_all();
  return sum;
}

std::string LocalStore::compare_set(const std::string& key, const std::string& expected,
                                    const std::string& desired) {
  std::lock_guard lock(mutex_);
  auto at = values_.find(key);
  if (at == values_.end() && !expected.empty()) return expected;
  if (at != values_.end() && at->second != expected) return at->second;
  values_[key] = desired;
  changed_.notify_all();
  return desired;
}

bool LocalStore::remove(const std::string& key) {
  std::lock_guard lock(mutex_);
  bool had_file = files_.erase(key) > 0;
  return values_.erase(key) > 0 || had_file;
}

bool LocalStore::check(std::span<const std::string> keys) {
  std::lock_guard lock(mutex_);
  return std::all_of(keys.begin(), keys.end(), [&](auto& k) { return values_.contains(k); });
}

void LocalStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_until(lock, timeout, join(keys), [&] {
    return std::all_of(keys.begin(), keys.end(), [&](auto& k) { return values_.contains(k); });
  });
}

int64_t LocalStore::size() {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(values_.size());
}

std::vector<std::string> LocalStore::list() {
  std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& entry : values_) out.push_back(entry.first);
  return out;
}

void LocalStore::append(const std::string& key, const std::string& value) {
  std::lock_guard lock(mutex_);
  values_[key] += value;
  changed_.notify_all();
}

void LocalStore::push(const std::string& queue, const std::string& value) {
  std::lock_guard lock(mutex_);
  queues_[queue].push_back(value);
  changed_.notify_all();
}

std::string LocalStore::pop(const std::string& queue, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_until(lock, timeout, "a value in the queue '" + queue + "'", [&] { return queues_.contains(queue); });
  auto at = queues_.find(queue);
  std::string out = std::move(at->second.front());
  at->second.pop_front();
  if (at->second.empty()) queues_.erase(at);
  return out;
}

int64_t LocalStore::length(const std::string& queue) {
  std::lock_guard lock(mutex_);
  auto at = queues_.find(queue);
  return at == queues_.end() ? 0 : static_cast<int64_t>(at->second.size());
}

void LocalStore::set_file(const std::string& key, const File& file) {
  File copy = file.duplicate();
  std::lock_guard lock(mutex_);
  files_[key] = std::move(copy);
  changed_.notify_all();
}

File LocalStore::get_file(const std::string& key, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_until(lock, timeout, "the file '" + key + "'", [&] { return files_.contains(key); });
  return files_[key].duplicate();
}

std::optional<std::string> LocalStore::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  auto at = values_.find(key);
  return at == values_.end() ? std::nullopt : std::optional(at->second);
}

File LocalStore::find_file(const std::string& key) {
  std::lock_guard lock(mutex_);
  auto at = files_.find(key);
  return at == files_.end() ? File() : at->second.duplicate();
}

void LocalStore::close(const std::string& reason) {
  std::lock_guard lock(mutex_);
  closed_ = reason;
  changed_.notify_all();
}

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix)), store_(std::move(store)) {
  timeout_ = store_->timeout();
}

std::vector<std::string> PrefixStore::full(std::span<const std::string> keys) const {
  std::vector<std::string> out;
  for (const std::string& k : keys) out.push_back(full(k));
  return out;
}

void PrefixStore::set(const std::string& key, const std::string& value) { store_->set(full(key), value); }
std::string PrefixStore::get(const std::string& key, Milliseconds timeout) {
  return store_->get(full(key), timeout);
}
int64_t PrefixStore::add(const std::string& key, int64_t amount) { return store_->add(full(key), amount); }
std::string PrefixStore::compare_set(const std::string& key, const std::string& expected,
                                     const std::string& desired) {
  return store_->compare_set(full(key), expected, desired);
}
bool PrefixStore::remove(const std::string& key) { return store_->remove(full(key)); }
bool PrefixStore::check(std::span<const std::string> keys) { return store_->check(full(keys)); }
void PrefixStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  store_->wait(full(keys), timeout);
}
int64_t PrefixStore::size() { return store_->size(); }
std::vector<std::string> PrefixStore::list() {
  const std::string start = full("");
  std::vector<std::string> out;
  for (const std::string& key : store_->list())
    if (key.starts_with(start)) out.push_back(key.substr(start.size()));
  return out;
}
void PrefixStore::append(const std::string& key, const std::string& value) {
  store_->append(full(key), value);
}
void PrefixStore::push(const std::string& queue, const std::string& value) {
  store_->push(full(queue), value);
}
std::string PrefixStore::pop(const std::string& queue, Milliseconds timeout) {
  return store_->pop(full(queue), timeout);
}
int64_t PrefixStore::length(const std::string& queue) { return store_->length(full(queue)); }
bool PrefixStore::shares_files() const { return store_->shares_files(); }
void PrefixStore::set_file(const std::string& key, const File& file) { store_->set_file(full(key), file); }
File PrefixStore::get_file(const std::string& key, Milliseconds timeout) {
  return store_->get_file(full(key), timeout);
}

void set_first(const std::shared_ptr<Store>& store, const std::string& key, const std::string& value,
               Milliseconds limit) {
  struct Told {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
  };
  auto told = std::make_shared<Told>();
  std::thread([told, store, key, value] {
    kernels::cpu::Uninterrupted quiet;
    try {
      store->compare_set(key, "", value);
    } catch (const std::exception&) {
    }
    std::lock_guard lock(told->mutex);
    told->over = true;
    told->changed.notify_all();
  }).detach();
  std::unique_lock lock(told->mutex);
  told->changed.wait_for(lock, limit, [&] { return told->over; });
}

}  // namespace warptape::distributed
