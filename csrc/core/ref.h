// Intrusive reference counting: the count lies in the object, a handle is one pointer.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

namespace warptape {

// T derives from RefCounted<T> and is destroyed by T::destroy(T*) when the last handle goes. With kWeak,
// try_retain may be called by who holds no reference; the count then has to reach 0 before the end, by an
// atomic decrement that the last handle of other types does without.
template <class T, bool kWeak = false>
class RefCounted {
 public:
  void retain() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    if ((!kWeak && refs_.load(std::memory_order_acquire) == 1) ||
        refs_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      T::destroy(const_cast<T*>(static_cast<const T*>(this)));
  }
  size_t use_count() const { return refs_.load(std::memory_order_acquire); }
  // For caches that hold no reference: fails when the object is already being destroyed.
  bool try_retain() const
    requires kWeak
  {
    size_t n = refs_.load(std::memory_order_relaxed);
    while (n != 0)
      if (refs_.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

 protected:
  RefCounted() = default;
  ~RefCounted() = default;
  mutable std::atomic<size_t> refs_{1};
};

template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  Ref(const Ref& o) : p_(o.p_) {
    if (p_) p_->retain();
  }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() {
    if (p_) p_->release();
  }
  static Ref adopt(T* p) {  // takes over the caller's reference
    Ref r;
    r.p_ = p;
    return r;
  }
  static Ref share(T* p) {
    if (p) p->retain();
    return adopt(p);
  }
  T* get() const { return p_; }
  T* release() { return std::exchange(p_, nullptr); }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  bool operator==(const Ref& o) const = default;

 private:
  T* p_ = nullptr;
};

}  // namespace warptape
