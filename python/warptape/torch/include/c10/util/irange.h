// for (const auto i : c10::irange(n))
#pragma once

#include <type_traits>

namespace c10 {

template <class T>
class IntegerRange {
 public:
  struct iterator {
    T value;
    T operator*() const { return value; }
    iterator& operator++() { return ++value, *this; }
    bool operator==(const iterator& other) const { return value == other.value; }
    bool operator!=(const iterator& other) const { return value != other.value; }
  };
  IntegerRange(T begin, T end) : begin_(begin), end_(end < begin ? begin : end) {}
  iterator begin() const { return {begin_}; }
  iterator end() const { return {end_}; }

 private:
  T begin_, end_;
};
template <class T>
IntegerRange<T> irange(T end) {
  return {T(), end};
}
template <class A, class B>
IntegerRange<B> irange(A begin, B end) {
  return {static_cast<B>(begin), end};
}

}  // namespace c10
