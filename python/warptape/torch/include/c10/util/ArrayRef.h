// A view of items that lie one after the other; it must not outlive them.
#pragma once

#include <algorithm>  // some of these for extensions that rely on finding them in PyTorch's headers
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "c10/util/Exception.h"

namespace c10 {

using std::make_optional;
using std::nullopt;
using std::nullopt_t;
using std::optional;
using string_view = std::string_view;

template <class T>
class ArrayRef {
 public:
  using value_type = T;
  using iterator = const T*;
  using const_iterator = const T*;

  constexpr ArrayRef() = default;
  constexpr ArrayRef(const T& one) : data_(&one), size_(1) {}
  constexpr ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  constexpr ArrayRef(const T* begin, const T* end) : data_(begin), size_(end - begin) {}
  template <class A>
  ArrayRef(const std::vector<T, A>& items) : data_(items.data()), size_(items.size()) {}
  template <size_t N>
  constexpr ArrayRef(const std::array<T, N>& items) : data_(items.data()), size_(N) {}
  template <size_t N>
  constexpr ArrayRef(const T (&items)[N]) : data_(items), size_(N) {}
#pragma GCC diagnostic push
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Winit-list-lifetime"  // of an argument, which lives as long as the call
#endif
  constexpr ArrayRef(const std::initializer_list<T>& items) : data_(items.begin()), size_(items.size()) {}
#pragma GCC diagnostic pop

  constexpr const T* begin() const { return data_; }
  constexpr const T* end() const { return data_ + size_; }
  constexpr const T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const T& operator[](size_t i) const { return data_[i]; }
  const T& at(size_t i) const {
    TORCH_CHECK_INDEX(i < size_, "ArrayRef: invalid index ", i, "; the length is ", size_);
    return data_[i];
  }
  const T& front() const { return at(0); }
  const T& back() const { return at(size_ - 1); }
  ArrayRef slice(size_t begin, size_t count) const {
    TORCH_CHECK_INDEX(begin + count <= size_, "ArrayRef: invalid slice [", begin, ", ", begin + count,
                      "); the length is ", size_);
    return ArrayRef(data_ + begin, count);
  }
  ArrayRef slice(size_t begin) const { return slice(begin, size_ - begin); }
  bool equals(ArrayRef other) const {
    if (size_ != other.size_) return false;
    for (size_t i = 0; i < size_; ++i)
      if (!(data_[i] == other.data_[i])) return false;
    return true;
  }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};

template <class T>
bool operator==(ArrayRef<T> a, ArrayRef<T> b) {
  return a.equals(b);
}
template <class T>
bool operator!=(ArrayRef<T> a, ArrayRef<T> b) {
  return !a.equals(b);
}
template <class T>
bool operator==(const std::vector<T>& a, ArrayRef<T> b) {
  return b.equals(a);
}
template <class T>
bool operator==(ArrayRef<T> a, const std::vector<T>& b) {
  return a.equals(b);
}
template <class T>
bool operator!=(ArrayRef<T> a, const std::vector<T>& b) {
  return !a.equals(b);
}
template <class T>
std::ostream& operator<<(std::ostream& out, ArrayRef<T> items) {
  out << '[';
  for (size_t i = 0; i < items.size(); ++i) out << (i ? ", " : "") << items[i];
  return out << ']';
}

using IntArrayRef = ArrayRef<int64_t>;

// Sizes or dims that may be left out; holds what ArrayRef may be made of, as std::optional would not.
class OptionalIntArrayRef {
 public:
  OptionalIntArrayRef() = default;
  OptionalIntArrayRef(nullopt_t) {}
  OptionalIntArrayRef(IntArrayRef items) : items_(items), has_(true) {}
  OptionalIntArrayRef(const int64_t& one) : items_(one), has_(true) {}
  OptionalIntArrayRef(const std::vector<int64_t>& items) : items_(items), has_(true) {}
  OptionalIntArrayRef(const std::initializer_list<int64_t>& items)
      : items_(items.begin(), items.size()), has_(true) {}
  OptionalIntArrayRef(const optional<IntArrayRef>& items) : has_(items.has_value()) {
    if (items) items_ = *items;
  }
  bool has_value() const { return has_; }
  explicit operator bool() const { return has_; }
  IntArrayRef value() const { return items_; }
  IntArrayRef operator*() const { return items_; }

 private:
  IntArrayRef items_;
  bool has_ = false;
};

}  // namespace c10
