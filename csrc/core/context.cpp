#include "core/context.h"

namespace warptape {

constinit thread_local ThreadState thread_state;

namespace {
RankContext& process_context() {
  static auto* context = new RankContext;
  return *context;
}
}  // namespace

RankContext& rank_context() {
  if (!thread_state.rank) thread_state.rank = &process_context();
  return *thread_state.rank;
}

void set_rank_context(RankContext* context) { thread_state.rank = context; }

}  // namespace warptape
