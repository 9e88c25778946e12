#include "ops/op.h"

#include <array>
#include <bit>

namespace warptape {
namespace {
// Constant-initialised, so that ops may register from the static constructors of any file.
constinit const OpInfo* newest = nullptr;
constinit std::array<Interceptor, 32> interceptors{};
}  // namespace

const OpInfo* all_ops() { return newest; }

const OpInfo* register_op(OpInfo* op) { return std::exchange(newest, op); }

void set_interceptor(DispatchBit bit, Interceptor f) {
  interceptors[std::countr_zero(static_cast<uint32_t>(bit))] = f;
}

bool intercept(const OpInfo& op, std::span<Value> args, Result& out, Keep& keep) {
  for (uint32_t rest = thread_state.dispatch; rest; rest &= rest - 1) {
    int bit = std::countr_zero(rest);
    Restore<uint32_t> off(thread_state.dispatch, thread_state.dispatch & ~(1u << bit));
    if (interceptors[bit] && interceptors[bit](op, args, out, keep)) return true;
  }
  return false;
}

}  // namespace warptape
