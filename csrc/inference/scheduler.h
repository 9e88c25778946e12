// Which requests compute how many tokens in the next step. A pure function of what it is given.
#pragma once

#include <vector>

#include "inference/pages.h"

namespace warptape::inference {

// A request as the scheduler sees it. Tokens that are `known` (of the prompt, and generated ones) but not
// `computed` (their keys and values are in pages) are to be computed; the last of them gives the next token.
struct Candidate {
  bool running = false;
  int64_t priority = 0, arrival = 0;  // smaller ones come first, by priority and then by arrival
  int64_t known = 0, computed = 0;
  int64_t drafts = 0;     // proposed tokens that may be checked in the same step
  int64_t pages = 0;      // running: held. Waiting: found for a prefix of `computed` tokens
  int64_t own_pages = 0;  // running: of these, free once it is preempted. Waiting: of these, idle now
  bool blocked = false;   // waiting for another request to compute what both begin with
};

struct Limits {
  int64_t max_num_seqs = 256;               // running at once
  int64_t max_num_batched_tokens = 2048;    // of a step
  int64_t max_prefill_beside_decode = 512;  // prompt tokens of a step in which others decode
};

struct Share {
  size_t request;  // index of the candidate
  int64_t tokens;  // that it computes in this step: the last `drafts` of them are proposed ones
  int64_t drafts;
};

struct Plan {
  std::vector<Share> shares;
  std::vector<size_t> preempted;  // give back their pages and wait again
};

// Requests that generate come first, with a token each; then prompts, running before waiting ones, in chunks
// that fit the limits. A request gets no more tokens than pages can be found for: where they run out, drafts
// are dropped, then the last running request by priority and arrival is preempted. A waiting request preempts
// only those of lower priority, and none overtakes one that comes before it. None begins in a step in which
// another is preempted, so a plan may be without shares although there is something to do.
WT_API Plan schedule(const std::vector<Candidate>& requests, const Limits& limits, int64_t idle_pages);

}  // namespace warptape::inference
