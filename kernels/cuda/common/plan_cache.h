// What a library worked out for one shape (descriptors, algorithm, execution plan), kept by the numbers that
// it depends on; the least recently used is forgotten.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace warptape::kernels::cuda {

template <size_t N, class Value>
class PlanCache {
 public:
  using Key = std::array<int64_t, N>;

  explicit PlanCache(size_t capacity) : capacity_(capacity) {}

  // The value for `key`, made by make() where there is none. Two threads may make the same one; one is kept.
  template <class Make>
  std::shared_ptr<Value> get(const Key& key, Make&& make) {
    {
      std::lock_guard lock(mutex_);
      if (auto found = index_.find(key); found != index_.end()) {
        entries_.splice(entries_.begin(), entries_, found->second);
        return found->second->second;
      }
    }
    std::shared_ptr<Value> made = make();
    std::lock_guard lock(mutex_);
    if (auto found = index_.find(key); found != index_.end()) return found->second->second;
    entries_.emplace_front(key, made);
    index_.emplace(key, entries_.begin());
    shrink();
    return made;
  }

  // Forgets what is more than that many.
  void set_capacity(size_t capacity) {
    std::lock_guard lock(mutex_);
    capacity_ = capacity;
    shrink();
  }
  size_t capacity() {
    std::lock_guard lock(mutex_);
    return capacity_;
  }

  size_t size() {
    std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t h = 0x9E3779B97F4A7C15u;
      for (int64_t n : key) {
        h = (h ^ static_cast<uint64_t>(n)) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
      }
      return h;
    }
  };
  using Entries = std::list<std::pair<Key, std::shared_ptr<Value>>>;

  void shrink() {
    for (; entries_.size() > capacity_; entries_.pop_back()) index_.erase(entries_.back().first);
  }

  size_t capacity_;
  std::mutex mutex_;
  Entries entries_;  // the most recently used first
  std::unordered_map<Key, typename Entries::iterator, Hash> index_;
};

}  // namespace warptape::kernels::cuda
