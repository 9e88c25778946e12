// warptape._C._distributed
#pragma once

#include "bindings/bound_object.h"
#include "distributed/store/store.h"

namespace warptape::distributed {
class ProcessGroup;
}

namespace warptape::bindings {

template <std::derived_from<distributed::Store> T>
inline constexpr bool kBound<T> = true;
template <>
inline constexpr bool kBound<distributed::ProcessGroup> = true;

void init_distributed(pybind11::module_& module);        // makes the submodule and all in it
void init_distributed_store(pybind11::module_& module);  // distributed_store.cpp

// An argument that says how long to wait: a timedelta, or a number of seconds. The longest timedelta, which
// pybind11's own conversion does not hold, stands for kLongestTimeout; ValueError for less than 0.
struct Timeout {
  distributed::Milliseconds ms{0};
};

void init_distributed_reducer(pybind11::module_& module);
void init_distributed_pipeline(pybind11::module_& module);
}  // namespace warptape::bindings

template <>
struct pybind11::detail::type_caster<warptape::bindings::Timeout> {
  PYBIND11_TYPE_CASTER(warptape::bindings::Timeout, const_name("datetime.timedelta"));

  bool load(handle source, bool) {
    using namespace warptape::distributed;
    object number = hasattr(source, "total_seconds") ? source.attr("total_seconds")()
                                                     : reinterpret_borrow<object>(source);
    if (!isinstance<float_>(number) && !isinstance<int_>(number)) return false;
    const std::chrono::duration<double> t(number.cast<double>());
    WT_CHECK(t.count() >= 0, ValueError, "expected a timeout of 0 or more, got ", t.count(), " s");
    value.ms = t < kLongestTimeout ? std::chrono::ceil<Milliseconds>(t) : kLongestTimeout;
    return true;
  }
};
