// Operators are calls of the ops, by the entry that functions and methods have.
#include "bindings/ops/override.h"
#include "bindings/tensor/numpy.h"

namespace warptape::bindings {
namespace {

bool is_operand(PyObject* o) {
  if (is_tensor(o) || PyFloat_Check(o) || PyLong_Check(o)) return true;
  Scalar s;
  return to_scalar(o, s);
}

// Whether one of the two takes the call over, or both are what the op takes.
bool are_operands(PyObject* a, PyObject* b) {
  return overridden(a, &b, 1) || (is_operand(a) && is_operand(b));
}

const OpGroup& group(const char* name, const OpGroup*& cached) {
  if (!cached) cached = find_op(name);
  if (!cached) throw NotImplementedError(message(name, ": this build has no such op"));
  return *cached;
}

// a op b where a is a tensor; or b is, and `reflected` computes it.
template <size_t N>
struct Name {
  char text[N];
  constexpr Name(const char (&s)[N]) { std::copy_n(s, N, text); }
};

template <Name name>
PyObject* binary(PyObject* a, PyObject* b) {
  static const OpGroup* cached = nullptr;
  return guarded([&]() -> PyObject* {
    if (!(is_tensor(a) && is_tensor(b)) && !are_operands(a, b)) Py_RETURN_NOTIMPLEMENTED;
    if (is_tensor(a)) return call_group(group(name.text, cached), a, &b, 1, nullptr);
    // A number on the left becomes a 0-dim tensor that promotes as a number does.
    PyObject* args[] = {a, b};
    return call_group(group(name.text, cached), nullptr, args, 2, nullptr);
  });
}

// array / tensor multiplies, as PyTorch does: NumPy leaves the quotient to the tensor and computes the
// product.
PyObject* divide(PyObject* a, PyObject* b) {
  if (is_tensor(a) || !is_array(a)) return binary<"div">(a, b);
  static const OpGroup* cached = nullptr;
  return guarded([&] {
    Object inverse = checked(call_group(group("reciprocal", cached), b, nullptr, 0, nullptr));
    return PyNumber_Multiply(inverse.get(), a);
  });
}

// NumPy leaves == and != to the tensor as well, and an array without a fitting dtype is equal to no tensor.
template <Name name>
PyObject* equality(PyObject* a, PyObject* b) {
  if (!is_array(b)) return binary<name>(a, b);
  return guarded([&]() -> PyObject* {
    Object other;
    try {
      other = checked(wrap(tensor_from_data(b)));
    } catch (const TypeError&) {
      Py_RETURN_NOTIMPLEMENTED;
    }
    return binary<name>(a, other.get());
  });
}

template <Name name>
PyObject* inplace(PyObject* a, PyObject* b) {
  static const OpGroup* cached = nullptr;
  return guarded([&]() -> PyObject* {
    if (!are_operands(a, b)) Py_RETURN_NOTIMPLEMENTED;
    return call_group(group(name.text, cached), a, &b, 1, nullptr);
  });
}

template <Name name>
PyObject* unary(PyObject* a) {
  static const OpGroup* cached = nullptr;
  return guarded([&] { return call_group(group(name.text, cached), a, nullptr, 0, nullptr); });
}

template <Name name>
PyObject* power(PyObject* a, PyObject* b, PyObject* modulus) {
  if (modulus != Py_None) Py_RETURN_NOTIMPLEMENTED;
  return binary<name>(a, b);
}

template <Name name>
PyObject* inplace_power(PyObject* a, PyObject* b, PyObject*) {
  return inplace<name>(a, b);
}

PyObject* positive(PyObject* a) { return Py_NewRef(a); }

PyObject* matmul(PyObject* a, PyObject* b) {
  if ((!is_tensor(a) || !is_tensor(b)) && !overridden(a, &b, 1)) Py_RETURN_NOTIMPLEMENTED;
  return binary<"matmul">(a, b);
}

const Tensor& single(PyObject* a, const char* what) {
  const Tensor& t = tensor_of(a);
  WT_CHECK(t.numel() == 1, ShapeError, "only one element tensors can be converted to Python scalars: ", what,
           " of ", t);
  return t;
}

Scalar real_item(PyObject* a, const char* what) {
  Scalar s = item_unlocked(single(a, what));
  WT_CHECK(s.to_complex().im == 0, Error, what,
           ": value cannot be converted to a real number without overflow: ", s.to_complex().im,
           "j would be lost");
  return s.is_complex() ? Scalar(s.to_double()) : s;
}

int truth(PyObject* a) {
  return guarded(
      [&] {
        const Tensor& t = tensor_of(a);
        WT_CHECK(t.numel() > 0, ShapeError, "Boolean value of Tensor with no values is ambiguous");
        WT_CHECK(t.numel() == 1, ShapeError,
                 "Boolean value of Tensor with more than one value is ambiguous: ", t);
        return item_unlocked(t).to_bool() ? 1 : 0;
      },
      -1);
}

PyObject* to_int(PyObject* a) {
  return guarded([&] {
    Scalar s = real_item(a, "int()");
    return s.is_floating() ? PyLong_FromDouble(s.to_double())
           : s.is_bool()   ? PyLong_FromLong(s.to_bool())
                           : wrap(s);
  });
}

PyObject* to_float(PyObject* a) {
  return guarded([&] { return PyFloat_FromDouble(real_item(a, "float()").to_double()); });
}

PyObject* to_index(PyObject* a) {
  return guarded([&] {
    WT_CHECK(tensor_of(a).numel() == 1 && category(tensor_of(a).dtype()) <= DTypeCategory::Integral,
             TypeError, "only integer tensors of a single element can be converted to an index");
    const Scalar s = item_unlocked(tensor_of(a));
    return s.is_bool() ? PyLong_FromLong(s.to_bool()) : wrap(s);
  });
}

PyNumberMethods make_methods() {
  PyNumberMethods m{};
  m.nb_add = binary<"add">;
  m.nb_subtract = binary<"sub">;
  m.nb_multiply = binary<"mul">;
  m.nb_true_divide = divide;
  m.nb_floor_divide = binary<"floor_divide">;
  m.nb_remainder = binary<"remainder">;
  m.nb_power = power<"pow">;
  m.nb_matrix_multiply = matmul;
  m.nb_negative = unary<"neg">;
  m.nb_positive = positive;
  m.nb_absolute = unary<"abs">;
  m.nb_invert = unary<"bitwise_not">;
  m.nb_and = binary<"bitwise_and">;
  m.nb_or = binary<"bitwise_or">;
  m.nb_xor = binary<"bitwise_xor">;
  m.nb_lshift = binary<"bitwise_left_shift">;
  m.nb_rshift = binary<"bitwise_right_shift">;
  m.nb_bool = truth;
  m.nb_int = to_int;
  m.nb_float = to_float;
  m.nb_index = to_index;
  m.nb_inplace_add = inplace<"add_">;
  m.nb_inplace_subtract = inplace<"sub_">;
  m.nb_inplace_multiply = inplace<"mul_">;
  m.nb_inplace_true_divide = inplace<"div_">;
  m.nb_inplace_floor_divide = inplace<"floor_divide_">;
  m.nb_inplace_remainder = inplace<"remainder_">;
  m.nb_inplace_power = inplace_power<"pow_">;
  m.nb_inplace_lshift = inplace<"bitwise_left_shift_">;
  m.nb_inplace_rshift = inplace<"bitwise_right_shift_">;
  m.nb_inplace_and = inplace<"bitwise_and_">;
  m.nb_inplace_or = inplace<"bitwise_or_">;
  m.nb_inplace_xor = inplace<"bitwise_xor_">;
  return m;
}

}  // namespace

PyNumberMethods number_methods = make_methods();

PyObject* tensor_richcompare(PyObject* a, PyObject* b, int op) {
  switch (op) {
    case Py_EQ:
      return equality<"eq">(a, b);
    case Py_NE:
      return equality<"ne">(a, b);
    case Py_LT:
      return binary<"lt">(a, b);
    case Py_LE:
      return binary<"le">(a, b);
    case Py_GT:
      return binary<"gt">(a, b);
    default:
      return binary<"ge">(a, b);
  }
}

}  // namespace warptape::bindings
