// Many requests on one model, step by step: what the model is to compute next, and what its logits mean.
//
// The engine knows no model. A step is begin_step(), a forward pass over the batch that it returns, and
// finish_step() with the logits. Since the noise of a draw depends on (seed, position, token) alone, and
// every kernel of the forward pass computes a row independently of the others, the tokens of a request do not
// depend on what else is computed, in what chunks, from which pages, or how often it was preempted.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "inference/sampler.h"
#include "inference/scheduler.h"

namespace warptape::inference {

struct EngineOptions {
  Limits limits;
  int64_t pages = 0;
  int64_t max_model_len = 0;  // tokens of a request, generated ones included
  int64_t vocab_size = 0;
  bool enable_prefix_caching = true;
  int64_t num_speculative_tokens = 0;  // proposed by n-gram
  int64_t prompt_lookup_min = 2, prompt_lookup_max = 5;
};

struct Request {
  std::vector<Token> prompt;
  std::vector<Token>
      generated;  // before, by an engine that is gone: what follows is what it would have drawn
  SamplingParams sampling;
  int64_t max_tokens = 16;  // to be generated
  int64_t min_tokens = 0;   // before a stop token may come
  std::vector<Token> stop_token_ids;
  int64_t prompt_logprobs = -1;  // the same of the prompt's tokens, which are then all computed
  int64_t logprobs = -1;     // how many of the likeliest tokens' are wanted beside the drawn one's; -1: none
  int64_t priority = 0;      // smaller ones come first
  int64_t salt = 0;          // prefixes are shared among requests of one salt
  int64_t adapter = 0;       // handed on with the batch
  bool constrained = false;  // allow() is called for it, and propose() in place of the n-gram
  int64_t leader = -1;       // a request with the same prompt, which is to compute it first
};

// The rows of one forward pass: N new tokens of R requests, one request after the other.
struct Batch {
  std::vector<int64_t> requests, adapters;  // [R]
  std::vector<std::vector<Token>> drafts;   // [R] proposed tokens, of which the last may be among the rows
  Tensor tokens;                            // int64 [N]
  Tensor page_table;                        // int32 [R, pages of the longest]
  Tensor starts, lengths;                   // int32 [R + 1] first rows; int32 [R] tokens with this step's
  Tensor logit_rows;                        // int64 [L]: the rows whose logits finish_step() gets
};

enum class Finish : uint8_t { None, Stop, Length, Error };  // Error: of logits no token can be drawn

struct Logprob {
  Token token;
  float logprob;
  int64_t rank;  // 1: the likeliest
};

struct Output {
  int64_t request = 0;
  std::vector<Token> tokens;                   // new ones; one, or more by speculation
  std::vector<std::vector<Logprob>> logprobs;  // per token: its own, then the likeliest ones'
  std::vector<std::vector<Logprob>>
      prompt_logprobs;        // of the prompt's tokens of this step, from its second token on
  int64_t cached_tokens = 0;  // of the prompt, when the request first began
  Finish finish = Finish::None;
};

struct EngineStats {
  int64_t steps = 0, computed_tokens = 0, generated_tokens = 0, preemptions = 0;
  int64_t prompt_tokens = 0, cached_prompt_tokens = 0;  // of admitted requests
  int64_t proposed_tokens = 0, accepted_tokens = 0;     // of speculation
};

// Any thread may call it, also while a step or a draft is computed or its tokens are drawn; steps and drafts
// themselves are one thread's.
class WT_API Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  // Returns the request's number, ascending. ValueError for what can never run, IndexError for tokens out of
  // the vocabulary.
  int64_t add(Request request);
  // Ends a request; its pages are free from the next step on. False if it is not there any more.
  bool abort(int64_t request);
  // Restricts the token after the first `after` proposed ones to those whose bit is set (32 tokens a word),
  // for one step. Called with `after` from 0 on: a constrained request gets no more tokens than it has masks.
  void allow(int64_t request, int64_t after, std::vector<uint32_t> tokens);
  // What the n-gram proposes; none where the next step gives the request no token, or is not to check any.
  std::optional<std::vector<Token>> ngram(int64_t request) const;
  // Tokens to be checked in the next step, in place of the n-gram's.
  void propose(int64_t request, std::vector<Token> tokens);
  // Between steps, for a draft model whose cache has the same pages: what it is to compute so that each
  // request that generates gets one more proposed token, and what it proposes, from its logits of the batch's
  // logit_rows, where a mask of allow() holds for them. Requests whose pages have no room for a token are
  // left out.
  Batch begin_draft();
  void finish_draft(const Tensor& logits);

  // Of the steps that follow, see Limits.
  void limit_prefill_beside_decode(int64_t tokens);

  // What to compute next; requests is empty where there is nothing to do.
  Batch begin_step();
  // logits: [L, vocab_size], of the batch's logit_rows. Ends the step.
  std::vector<Output> finish_step(const Tensor& logits);
  // Ends the step as if it had not been begun: its forward pass failed. No-op without one.
  void cancel_step();

  int64_t waiting() const;
  int64_t running() const;
  int64_t idle_pages() const;
  EngineStats stats() const;

 private:
  struct Sequence;
  struct Step;  // one sequence's part of the current step

  Sequence* find(int64_t id) const;
  std::vector<Sequence*> in_sight();
  std::optional<std::vector<Token>> ngram(const Sequence& s) const;
  Candidate candidate(Sequence& s);
  void start(Sequence& s);
  void preempt(Sequence& s);
  void release(Sequence& s);
  void remove(Sequence& s);
  void publish(Sequence& s);
  bool plan_step();
  Batch batch_of(const std::vector<Step>& steps) const;
  void check_logits(const std::vector<Step>& steps, const Tensor& logits) const;
  void end_step();
  void end_draft();
  void constrain(const Sequence& s, const TokenCounts& counts, int64_t after, std::span<float> row) const;
  Output draw(const Step& step, const float* logits) const;
  void apply(const Step& step, Output& out);

  mutable std::mutex mutex_;  // of all that follows
  EngineOptions options_;
  PagePool pool_;
  std::map<int64_t, std::unique_ptr<Sequence>> sequences_;
  std::map<int64_t, Sequence*> running_;
  std::set<std::pair<int64_t, int64_t>> waiting_;  // (priority, request)
  std::vector<Step> step_, draft_;
  int64_t next_ = 0;
  EngineStats stats_;
};

// float32 [N]: of each row of logits [N, V] a token's log-probability, with the bits of an Output's.
WT_API Tensor token_logprobs(const Tensor& logits, const std::vector<Token>& tokens);

}  // namespace warptape::inference
