// A value of any kind: what a node keeps beside tensors.
#pragma once

#include <string>
#include <variant>

#include "ATen/Functions.h"

namespace c10 {

// A list as TorchScript has it.
template <class T>
class List : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  List(std::vector<T> items) : std::vector<T>(std::move(items)) {}
  T get(size_t i) const { return this->at(i); }
  const std::vector<T>& vec() const { return *this; }
};

class IValue {
 public:
  IValue() = default;
  IValue(at::Tensor t) : value_(std::move(t)) {}
  IValue(bool b) : value_(b) {}
  template <class T, std::enable_if_t<std::is_integral<T>::value && !std::is_same<T, bool>::value, int> = 0>
  IValue(T i) : value_(static_cast<int64_t>(i)) {}
  IValue(double d) : value_(d) {}
  IValue(float f) : value_(static_cast<double>(f)) {}
  IValue(Scalar s) : IValue() {
    if (s.isFloatingPoint())
      value_ = s.toDouble();
    else if (s.isBoolean())
      value_ = s.toBool();
    else
      value_ = s.toLong();
  }
  IValue(std::string s) : value_(std::move(s)) {}
  IValue(const char* s) : value_(std::string(s)) {}
  IValue(std::vector<int64_t> list) : value_(std::move(list)) {}
  IValue(IntArrayRef list) : value_(list.vec()) {}
  IValue(std::vector<double> list) : value_(std::move(list)) {}
  IValue(std::vector<at::Tensor> list) : value_(std::move(list)) {}
  template <class T>
  IValue(const optional<T>& x) : IValue() {
    if (x) *this = IValue(*x);
  }
  IValue(nullopt_t) {}

  bool isNone() const { return holds<std::monostate>(); }
  bool isTensor() const { return holds<at::Tensor>(); }
  bool isInt() const { return holds<int64_t>(); }
  bool isDouble() const { return holds<double>(); }
  bool isBool() const { return holds<bool>(); }
  bool isString() const { return holds<std::string>(); }
  bool isIntList() const { return holds<std::vector<int64_t>>(); }
  bool isTensorList() const { return holds<std::vector<at::Tensor>>(); }

  const at::Tensor& toTensor() const { return as<at::Tensor>("Tensor"); }
  int64_t toInt() const { return as<int64_t>("Int"); }
  double toDouble() const { return as<double>("Double"); }
  bool toBool() const { return as<bool>("Bool"); }
  const std::string& toStringRef() const { return as<std::string>("String"); }
  std::vector<int64_t> toIntVector() const { return as<std::vector<int64_t>>("IntList"); }
  List<int64_t> toIntList() const { return toIntVector(); }
  std::vector<double> toDoubleVector() const { return as<std::vector<double>>("DoubleList"); }
  std::vector<at::Tensor> toTensorVector() const { return as<std::vector<at::Tensor>>("TensorList"); }
  List<at::Tensor> toTensorList() const { return toTensorVector(); }
  Scalar toScalar() const {
    if (isDouble()) return toDouble();
    if (isBool()) return toBool();
    return toInt();
  }
  template <class T>
  T to() const {
    if constexpr (std::is_same<T, bool>::value)
      return toBool();
    else if constexpr (std::is_integral<T>::value)
      return static_cast<T>(toInt());
    else if constexpr (std::is_floating_point<T>::value)
      return static_cast<T>(toDouble());
    else
      return as<T>("a value of the type asked for");
  }

 private:
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(value_);
  }
  template <class T>
  const T& as(const char* kind) const {
    TORCH_CHECK(holds<T>(), "Expected ", kind, " but got another kind of value");
    return std::get<T>(value_);
  }
  std::variant<std::monostate, at::Tensor, bool, int64_t, double, std::string, std::vector<int64_t>,
               std::vector<double>, std::vector<at::Tensor>>
      value_;
};

}  // namespace c10
