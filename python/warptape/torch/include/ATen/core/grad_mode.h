// Whether ops are recorded.
#pragma once

#include "c10/util/Exception.h"

namespace c10 {

struct GradMode {
  static bool is_enabled() { return wtx::api().grad_mode(-1) != 0; }
  static void set_enabled(bool on) { wtx::api().grad_mode(on); }
};
// For the scope.
class AutoGradMode {
 public:
  explicit AutoGradMode(bool on) : before_(wtx::api().grad_mode(on)) {}
  ~AutoGradMode() { wtx::api().grad_mode(before_); }
  AutoGradMode(const AutoGradMode&) = delete;
  AutoGradMode& operator=(const AutoGradMode&) = delete;

 private:
  int before_;
};
struct NoGradGuard : AutoGradMode {
  NoGradGuard() : AutoGradMode(false) {}
};
using InferenceMode = NoGradGuard;

}  // namespace c10
namespace at {
using c10::AutoGradMode;
using c10::GradMode;
using c10::NoGradGuard;
// Below the tape: ops inside are not recorded.
struct AutoDispatchBelowADInplaceOrView : NoGradGuard {};
using AutoDispatchBelowAutograd = AutoDispatchBelowADInplaceOrView;
using AutoNonVariableTypeMode = AutoDispatchBelowADInplaceOrView;
}  // namespace at
