// A vector whose first N elements need no allocation.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace warptape {

template <class T, int N>
class SmallVector {
 public:
  SmallVector() = default;
  explicit SmallVector(size_t n, const T& value = T()) { resize(n, value); }
  SmallVector(std::initializer_list<T> values) { append(values.begin(), values.end()); }
  SmallVector(std::span<const T> values) { append(values.begin(), values.end()); }
  template <std::input_iterator It>
  SmallVector(It first, It last) {
    append(first, last);
  }
  SmallVector(const SmallVector& o) { append(o.begin(), o.end()); }
  SmallVector(SmallVector&& o) noexcept { take(o); }
  SmallVector& operator=(const SmallVector& o) {
    if (this != &o) {
      clear();
      append(o.begin(), o.end());
    }
    return *this;
  }
  SmallVector& operator=(SmallVector&& o) noexcept {
    if (this != &o) {
      reset();
      take(o);
    }
    return *this;
  }
  ~SmallVector() { reset(); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }
  T& front() { return data_[0]; }
  const T& front() const { return data_[0]; }
  operator std::span<const T>() const { return {data_, size_}; }
  bool operator==(const SmallVector& o) const { return std::equal(begin(), end(), o.begin(), o.end()); }

  void reserve(size_t n) {
    if (n <= capacity_) return;
    n = std::max<size_t>(n, 2 * size_t{capacity_});
    move_to(allocate(n), n);
  }
  template <class... A>
  T& emplace_back(A&&... args) {
    if (__builtin_expect(size_ == capacity_, 0)) return emplace_grown(std::forward<A>(args)...);
    T* p = new (data_ + size_) T(std::forward<A>(args)...);
    ++size_;
    return *p;
  }
  void push_back(T value) { emplace_back(std::move(value)); }
  void pop_back() { std::destroy_at(data_ + --size_); }
  void resize(size_t n, const T& value = T()) {
    while (size_ > n) pop_back();
    reserve(n);
    while (size_ < n) emplace_back(value);
  }
  void clear() {
    std::destroy(begin(), end());
    size_ = 0;
  }
  template <class It>
  void append(It first, It last) {
    reserve(size_ + static_cast<size_t>(std::distance(first, last)));
    for (; first != last; ++first) emplace_back(*first);
  }
  void insert(size_t at, T value) {
    push_back(std::move(value));
    std::rotate(begin() + at, end() - 1, end());
  }
  void erase(size_t at) {
    std::move(begin() + at + 1, end(), begin() + at);
    pop_back();
  }

 private:
  static T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(alignof(T))));
  }
  void move_to(T* fresh, size_t n) {
    std::uninitialized_move(begin(), end(), fresh);
    std::destroy(begin(), end());
    free_heap();
    data_ = fresh;
    capacity_ = static_cast<uint32_t>(n);
  }
  // The arguments may lie in this vector, so the new element is made before the others move.
  template <class... A>
  T& emplace_grown(A&&... args) {
    const size_t n = std::max<size_t>(size_ + 1, 2 * size_t{capacity_});
    T* fresh = allocate(n);
    try {
      new (fresh + size_) T(std::forward<A>(args)...);
    } catch (...) {
      ::operator delete(fresh, std::align_val_t(alignof(T)));
      throw;
    }
    move_to(fresh, n);
    return data_[size_++];
  }
  T* inline_data() { return reinterpret_cast<T*>(buffer_); }
  void free_heap() {
    if (data_ != inline_data()) ::operator delete(data_, std::align_val_t(alignof(T)));
  }
  void reset() {
    clear();
    free_heap();
    data_ = inline_data();
    capacity_ = N;
  }
  void take(SmallVector& o) {
    if (o.data_ != o.inline_data()) {
      data_ = std::exchange(o.data_, o.inline_data());
      size_ = std::exchange(o.size_, 0u);
      capacity_ = std::exchange(o.capacity_, static_cast<uint32_t>(N));
    } else {
      std::uninitialized_move(o.begin(), o.end(), data_);
      size_ = o.size_;
      o.clear();
    }
  }

  T* data_ = inline_data();
  uint32_t size_ = 0;
  uint32_t capacity_ = N;
  alignas(T) unsigned char buffer_[N * sizeof(T)];
};

}  // namespace warptape
