#include "inference/engine.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/errors.h"
#include "inference/speculate.h"
#include "kernels/runtime/parallel.h"
#include "tensor/factory.h"

namespace warptape::inference {
namespace {

// Of the waiting requests so many are looked at in a step: each costs a search for its prefix.
constexpr int64_t kMostAdmissions = 64;

template <class T>
Tensor tensor_of(const std::vector<T>& values, DType dtype) {
  Tensor out = empty(Shape{static_cast<int64_t>(values.size())}, {dtype, Device{}});
  std::ranges::copy(values, static_cast<T*>(out.data()));
  return out;
}

// Whether the mask has no token but these.
bool allows_only(std::span<const uint32_t> mask, const std::vector<Token>& tokens) {
  int64_t others = 0;
  for (uint32_t word : mask) others += std::popcount(word);
  std::vector<Token> distinct = tokens;
  std::ranges::sort(distinct);
  const auto repeated = std::ranges::unique(distinct);
  distinct.erase(repeated.begin(), repeated.end());
  for (Token t : distinct) {
    const auto word = static_cast<size_t>(t) / 32;
    if (word < mask.size()) others -= mask[word] >> (t % 32) & 1;
  }
  return others == 0;
}

// In host memory as float32. Without the engine's lock: memory that is deferred, or a device's, may have to
// wait for other threads.
Tensor on_host(const Tensor& logits) {
  Tensor out = empty(logits.sizes(), {DType::Float32, Device{}});
  raw_copy(out, logits);
  return out;
}

// Makes log-probabilities of logits. The largest logit is subtracted first, and its own share of the mass is
// not added up: the log-probability of a token that is almost sure keeps all of its digits.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits) {
    const auto largest = std::ranges::max_element(logits);
    double others = 0;
    for (auto x = logits.begin(); x != logits.end(); ++x)
      if (x != largest) others += std::exp(static_cast<double>(*x) - *largest);
    largest_ = *largest;
    log_mass_ = std::log1p(others);
  }
  float operator()(float logit) const { return static_cast<float>((logit - largest_) - log_mass_); }

 private:
  double largest_, log_mass_;
};

// The drawn token's log-probability and those of the `count` likeliest tokens, of softmax(logits).
std::vector<Logprob> logprobs_of(std::span<const float> logits, Token drawn, int64_t count) {
  const LogSoftmax log_softmax(logits);
  const auto of = [&](Token t) { return log_softmax(logits[static_cast<size_t>(t)]); };
  const float own = logits[static_cast<size_t>(drawn)];
  std::vector<Logprob> out{
      {drawn, of(drawn), 1 + std::ranges::count_if(logits, [own](float x) { return x > own; })}};

  std::vector<Token> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Token>(i);
  count = std::min(count, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](Token a, Token b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (int64_t i = 0; i < count; ++i)
    out.push_back({order[static_cast<size_t>(i)], of(order[static_cast<size_t>(i)]), i + 1});
  return out;
}

}  // namespace

Tensor token_logprobs(const Tensor& logits, const std::vector<Token>& tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  WT_CHECK(logits.ndim() == 2 && logits.size(0) == rows, ShapeError, "expected logits [", rows, ", V], got ",
           AsShape{logits.sizes()});
  const auto vocabulary = static_cast<size_t>(logits.size(1));
  for (Token t : tokens)
    WT_CHECK(t >= 0 && static_cast<size_t>(t) < vocabulary, IndexError, "token ", t, " of ", vocabulary);
  const Tensor values = on_host(logits);
  Tensor out = empty(Shape{rows}, {DType::Float32, Device{}});
  auto* result = static_cast<float*>(out.data());
  kernels::cpu::parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const std::span row(static_cast<const float*>(values.data()) + i * vocabulary, vocabulary);
      result[i] = LogSoftmax(row)(row[static_cast<size_t>(tokens[i])]);
    }
  });
  return out;
}

struct Engine::Sequence {
  Sequence(int64_t number, Request r) : id(number), request(std::move(r)), tokens(request.prompt) {
    tokens.insert(tokens.end(), request.generated.begin(), request.generated.end());
    if (!request.sampling.penalizes()) return;
    for (Token t : request.prompt) counts[t].in_prompt = true;
    for (Token t : request.generated) ++counts[t].generated;
  }
  int64_t known() const { return static_cast<int64_t>(tokens.size()); }
  int64_t generated() const { return known() - static_cast<int64_t>(request.prompt.size()); }

  int64_t id;
  Request request;
  std::vector<Token> tokens;  // of the prompt, and generated ones
  TokenCounts counts;         // where there are penalties
  std::vector<Token> drafts;
  std::vector<std::vector<uint32_t>> allowed;  // of the token after 0, 1, .. drafts
  int64_t described = 0;                       // tokens of the prompt whose log-probabilities came
  bool wants_prompt() const {
    return request.prompt_logprobs >= 0 && described + 1 < static_cast<int64_t>(request.prompt.size());
  }
  bool running = false, aborted = false;
  int64_t computed = 0,
          drafted = 0;  // tokens whose keys and values are in pages: the model's, a draft model's
  std::vector<PageId> pages;
  std::vector<PageId> prefix;              // while it waits: known pages that it would begin with
  int64_t cached = -1;                     // tokens that were found when it first began
  int64_t published = 0;                   // pages
  int64_t content = PagePool::kNoContent;  // of the last published one
};

struct Engine::Step {
  Sequence* sequence;
  int64_t first, tokens;  // positions first .. first + tokens - 1
  int64_t draws;          // from how many of the last rows tokens are drawn
  int64_t logit_rows;     // how many of the last rows give logits: these, or all for the prompt's

  int64_t end() const { return first + tokens; }
};

Engine::Engine(EngineOptions options) : options_(std::move(options)), pool_(options_.pages) {
  const EngineOptions& o = options_;
  WT_CHECK(o.limits.max_num_seqs > 0 && o.limits.max_num_batched_tokens > 0 &&
               o.limits.max_prefill_beside_decode > 0,
           ValueError,
           "max_num_seqs, max_num_batched_tokens and max_prefill_beside_decode must be at least 1");
  WT_CHECK(o.vocab_size > 0 && o.max_model_len > 0, ValueError,
           "vocab_size and max_model_len must be at least 1");
  WT_CHECK(pages_for(o.max_model_len) <= o.pages, ValueError, "max_model_len ", o.max_model_len, " needs ",
           pages_for(o.max_model_len), " pages of ", kPageTokens, " tokens, but there is memory for ",
           o.pages, "; give the cache more memory or lower max_model_len");
  WT_CHECK(
      o.num_speculative_tokens >= 0 && o.prompt_lookup_min >= 1 && o.prompt_lookup_max >= o.prompt_lookup_min,
      ValueError, "expected num_speculative_tokens >= 0 and 1 <= prompt_lookup_min <= prompt_lookup_max");
}
Engine::~Engine() = default;

void Engine::limit_prefill_beside_decode(int64_t tokens) {
  const std::lock_guard lock(mutex_);
  options_.limits.max_prefill_beside_decode = tokens;
}

int64_t Engine::waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(waiting_.size());
}

int64_t Engine::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(running_.size());
}

int64_t Engine::idle_pages() const {
  const std::lock_guard lock(mutex_);
  return pool_.idle();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

Engine::Sequence* Engine::find(int64_t id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

int64_t Engine::add(Request r) {
  const std::lock_guard lock(mutex_);
  const int64_t size = static_cast<int64_t>(r.prompt.size()), vocab = options_.vocab_size;
  WT_CHECK(size > 0, ValueError, "the prompt has no token");
  WT_CHECK(r.max_tokens >= 1, ValueError, "max_tokens must be at least 1, got ", r.max_tokens);
  WT_CHECK(r.min_tokens >= 0 && r.min_tokens <= r.max_tokens, ValueError,
           "min_tokens must be in [0, max_tokens = ", r.max_tokens, "], got ", r.min_tokens);
  WT_CHECK(size + r.max_tokens <= options_.max_model_len, ValueError, "the prompt has ", size,
           " tokens, and ", r.max_tokens, " are to be generated, but the maximum model length is ",
           options_.max_model_len);
  const int64_t generated = static_cast<int64_t>(r.generated.size());
  WT_CHECK(generated < r.max_tokens, ValueError, "the request has ", generated,
           " generated tokens already, and max_tokens is ", r.max_tokens);
  WT_CHECK(generated == 0 || r.prompt_logprobs < 0, ValueError,
           "prompt_logprobs of a request that goes on: they came with its first token");
  for (int64_t wanted : {r.logprobs, r.prompt_logprobs})
    WT_CHECK(wanted >= -1 && wanted <= vocab, ValueError, "logprobs must be in [0, ", vocab, "], got ",
             wanted);
  r.sampling.check(vocab);
  for (const auto* tokens : {&r.prompt, &r.generated, &r.stop_token_ids})
    for (Token t : *tokens)
      WT_CHECK(t >= 0 && t < vocab, IndexError, "token ", t, " is out of the vocabulary of ", vocab);
  const int64_t id = next_++;
  waiting_.emplace(r.priority, id);
  sequences_.emplace(id, std::make_unique<Sequence>(id, std::move(r)));
  return id;
}

bool Engine::abort(int64_t id) {
  const std::lock_guard lock(mutex_);
  Sequence* s = find(id);
  if (!s || s->aborted) return false;
  s->aborted = true;
  // The rows of a step or draft that has begun are counted: it stays until that ends.
  const auto is_in = [s](const std::vector<Step>& steps) {
    return std::ranges::find(steps, s, &Step::sequence) != steps.end();
  };
  if (!is_in(step_) && !is_in(draft_)) remove(*s);
  return true;
}

void Engine::remove(Sequence& s) {
  release(s);
  running_.erase(s.id);
  waiting_.erase({s.request.priority, s.id});
  sequences_.erase(s.id);
}

void Engine::allow(int64_t id, int64_t after, std::vector<uint32_t> tokens) {
  const std::lock_guard lock(mutex_);
  Sequence* s = find(id);
  if (!s) return;
  WT_CHECK(s->request.constrained, ValueError, "allow: request ", id, " was not added as constrained");
  const auto known = static_cast<int64_t>(s->allowed.size());
  WT_CHECK(after >= 0 && after <= known, ValueError, "allow: expected a mask after at most ", known,
           " proposed tokens, got one after ", after);
  // Masks further on came with other proposals.
  s->allowed.resize(static_cast<size_t>(after));
  s->allowed.push_back(std::move(tokens));
}

std::optional<std::vector<Token>> Engine::ngram(const Sequence& s) const {
  if (!s.running || s.known() - s.computed != 1 || options_.num_speculative_tokens == 0) return std::nullopt;
  return propose_ngram(s.tokens, options_.prompt_lookup_min, options_.prompt_lookup_max,
                       options_.num_speculative_tokens);
}

std::optional<std::vector<Token>> Engine::ngram(int64_t id) const {
  const std::lock_guard lock(mutex_);
  const Sequence* s = find(id);
  return s ? ngram(*s) : std::nullopt;
}

void Engine::propose(int64_t id, std::vector<Token> tokens) {
  for (Token t : tokens)
    WT_CHECK(t >= 0 && t < options_.vocab_size, IndexError, "token ", t, " is out of the vocabulary of ",
             options_.vocab_size);
  const std::lock_guard lock(mutex_);
  Sequence* s = find(id);
  if (s) s->drafts = std::move(tokens);
}

// The running requests, and those of the waiting ones that may begin next.
std::vector<Engine::Sequence*> Engine::in_sight() {
  std::vector<Sequence*> out;
  for (const auto& [id, s] : running_) out.push_back(s);
  int64_t waiting = kMostAdmissions;
  for (const auto& [priority, id] : waiting_) {
    if (waiting-- == 0) break;
    out.push_back(find(id));
  }
  return out;
}

Candidate Engine::candidate(Sequence& s) {
  Candidate c{.running = s.running, .priority = s.request.priority, .arrival = s.id, .known = s.known()};
  if (s.running) {
    const int64_t wanted = s.request.max_tokens - s.generated() - 1;
    if (s.drafts.empty() && !s.request.constrained) s.drafts = ngram(s).value_or(std::vector<Token>());
    c.drafts = std::min(static_cast<int64_t>(s.drafts.size()), wanted);
    c.computed = s.computed;
    c.pages = static_cast<int64_t>(s.pages.size());
    c.own_pages = std::ranges::count_if(s.pages, [this](PageId p) { return pool_.references(p) == 1; });
    return c;
  }
  if (options_.enable_prefix_caching && !s.wants_prompt()) s.prefix = pool_.find(s.request.salt, s.tokens);
  // One token at least is computed: its logits are wanted.
  s.prefix.resize(std::min(s.prefix.size(), static_cast<size_t>((s.known() - 1) / kPageTokens)));
  c.pages = static_cast<int64_t>(s.prefix.size());
  c.computed = c.pages * kPageTokens;
  c.own_pages = std::ranges::count_if(s.prefix, [this](PageId p) { return pool_.references(p) == 0; });
  const Sequence* leader = find(s.request.leader);
  c.blocked = leader && leader->computed <
                            (static_cast<int64_t>(s.request.prompt.size()) - 1) / kPageTokens * kPageTokens;
  return c;
}

// Begins to run with the pages of its prefix.
void Engine::start(Sequence& s) {
  for (PageId page : s.prefix) pool_.share(page);
  s.pages = std::move(s.prefix);
  s.published = static_cast<int64_t>(s.pages.size());
  s.content = s.pages.empty() ? PagePool::kNoContent : pool_.content(s.pages.back());
  s.computed = s.published * kPageTokens;
  s.running = true;
  running_.emplace(s.id, &s);
  if (s.cached < 0) s.cached = s.computed;
  waiting_.erase({s.request.priority, s.id});
  stats_.prompt_tokens += s.known();
  stats_.cached_prompt_tokens += s.computed;
}

void Engine::release(Sequence& s) {
  // The last page first, so that the beginnings of sequences are known longest.
  while (!s.pages.empty()) {
    pool_.release(s.pages.back());
    s.pages.pop_back();
  }
}

void Engine::preempt(Sequence& s) {
  release(s);
  s.running = false;
  running_.erase(s.id);
  s.computed = s.drafted = s.published = 0;
  s.content = PagePool::kNoContent;
  s.drafts.clear();
  waiting_.emplace(s.request.priority, s.id);
  ++stats_.preemptions;
}

void Engine::publish(Sequence& s) {
  if (!options_.enable_prefix_caching) return;
  for (; (s.published + 1) * kPageTokens <= s.computed; ++s.published) {
    const auto first = static_cast<size_t>(s.published * kPageTokens);
    s.content = pool_.publish(s.pages[static_cast<size_t>(s.published)], s.request.salt, s.content,
                              std::span(s.tokens).subspan(first, kPageTokens));
  }
}

Batch Engine::begin_step() {
  const std::lock_guard lock(mutex_);
  WT_CHECK(step_.empty(), Error, "begin_step: the step before is neither finished nor cancelled");
  end_draft();
  while (plan_step() && step_.empty()) {
  }
  return batch_of(step_);
}

// Whether requests were preempted.
bool Engine::plan_step() {
  const std::vector<Sequence*> sequences = in_sight();
  std::vector<Candidate> candidates;
  for (Sequence* s : sequences) candidates.push_back(candidate(*s));
  const Plan plan = schedule(candidates, options_.limits, pool_.idle());
  for (size_t i : plan.preempted) preempt(*sequences[i]);
  // All prefixes are held before any page is taken for something else.
  for (const Share& share : plan.shares)
    if (!sequences[share.request]->running) start(*sequences[share.request]);
  for (const Share& share : plan.shares) {
    Sequence& s = *sequences[share.request];
    s.drafts.resize(static_cast<size_t>(share.drafts));
    while (static_cast<int64_t>(s.pages.size()) < pages_for(s.computed + share.tokens)) {
      const PageId page = pool_.allocate();
      WT_CHECK(page >= 0, Error, "the scheduler gave away more pages than there are");
      s.pages.push_back(page);
    }
    const bool draws = s.computed + share.tokens - share.drafts == s.known();
    const int64_t rows = draws ? 1 + share.drafts : 0;
    step_.push_back({&s, s.computed, share.tokens, rows, s.wants_prompt() ? share.tokens : rows});
  }
  return !plan.preempted.empty();
}

Batch Engine::batch_of(const std::vector<Step>& steps) const {
  std::vector<int64_t> tokens, logit_rows;
  std::vector<int32_t> starts{0}, lengths;
  size_t longest = 1;
  Batch out;
  for (const Step& step : steps) {
    const Sequence& s = *step.sequence;
    for (int64_t at = step.first; at < step.end(); ++at)
      tokens.push_back(at < s.known() ? s.tokens[static_cast<size_t>(at)]
                                      : s.drafts[static_cast<size_t>(at - s.known())]);
    const auto rows = static_cast<int64_t>(tokens.size());
    for (int64_t i = rows - step.logit_rows; i < rows; ++i) logit_rows.push_back(i);
    starts.push_back(static_cast<int32_t>(rows));
    lengths.push_back(static_cast<int32_t>(step.end()));
    out.requests.push_back(s.id);
    out.adapters.push_back(s.request.adapter);
    out.drafts.push_back(s.drafts);
    longest = std::max(longest, s.pages.size());
  }
  std::vector<int32_t> table(steps.size() * longest);
  for (size_t r = 0; r < steps.size(); ++r)
    std::ranges::copy(steps[r].sequence->pages, table.begin() + static_cast<ptrdiff_t>(r * longest));
  out.tokens = tensor_of(tokens, DType::Int64);
  out.logit_rows = tensor_of(logit_rows, DType::Int64);
  out.starts = tensor_of(starts, DType::Int32);
  out.lengths = tensor_of(lengths, DType::Int32);
  const Tensor flat = tensor_of(table, DType::Int32);
  const auto r = static_cast<int64_t>(steps.size()), pages = static_cast<int64_t>(longest);
  out.page_table = alias(flat, {r, pages}, {pages, 1}, 0);
  return out;
}

// Makes the logits of the token after so many drafts those that a token is drawn from; `counts` has the
// drafts.
void Engine::constrain(const Sequence& s, const TokenCounts& counts, int64_t after,
                       std::span<float> row) const {
  const Request& r = s.request;
  const auto place = static_cast<size_t>(after);
  const std::span<const uint32_t> allowed =
      place < s.allowed.size() ? s.allowed[place] : std::span<const uint32_t>();
  // Where a grammar allows stop tokens alone, min_tokens cannot hold them back; the grammar's owner ends it.
  const bool may_stop = s.generated() + after + 1 > r.min_tokens ||
                        (!allowed.empty() && allows_only(allowed, r.stop_token_ids));
  apply_constraints(row, r.sampling, counts, may_stop ? std::span<const Token>() : r.stop_token_ids, allowed);
}

// Draws tokens from the rows of one request until one is not the one that was proposed, or masks end.
Output Engine::draw(const Step& step, const float* logits) const {
  const Sequence& s = *step.sequence;
  const Request& r = s.request;
  const auto vocab = static_cast<size_t>(options_.vocab_size);
  TokenCounts counts = s.counts;
  std::vector<float> row(vocab);
  Output out;
  out.request = s.id;
  out.cached_tokens = s.cached;
  for (int64_t at = step.end() - step.logit_rows; at < step.end() - step.draws; ++at, logits += vocab)
    if (at == s.described + static_cast<int64_t>(out.prompt_logprobs.size())) {
      if (!has_probabilities({logits, vocab})) {
        out.finish = Finish::Error;
        return out;
      }
      out.prompt_logprobs.push_back(
          logprobs_of({logits, vocab}, s.tokens[static_cast<size_t>(at + 1)], r.prompt_logprobs));
    }
  for (int64_t i = 0; i < step.draws; ++i, logits += vocab) {
    row.assign(logits, logits + vocab);
    const bool valid = has_probabilities(row);
    if (valid) constrain(s, counts, i, row);
    if (!valid || !has_probabilities(row)) {
      // After accepted drafts the next step meets the same row as its first.
      if (i == 0) out.finish = Finish::Error;
      break;
    }
    const Token token = sample(row, r.sampling, static_cast<uint64_t>(s.known() + i));
    out.tokens.push_back(token);
    if (r.logprobs >= 0) out.logprobs.push_back(logprobs_of({logits, vocab}, token, r.logprobs));
    if (r.sampling.penalizes()) ++counts[token].generated;
    const int64_t generated = s.generated() + i + 1;
    const bool stops = std::ranges::find(r.stop_token_ids, token) != r.stop_token_ids.end();
    if (stops && generated > r.min_tokens)
      out.finish = Finish::Stop;
    else if (generated == r.max_tokens)
      out.finish = Finish::Length;
    if (out.finish != Finish::None || i + 1 == step.draws || s.drafts[static_cast<size_t>(i)] != token) break;
    if (r.constrained && i + 1 == static_cast<int64_t>(s.allowed.size())) break;
  }
  return out;
}

void Engine::apply(const Step& step, Output& out) {
  Sequence& s = *step.sequence;
  // Of what was proposed, the keys and values of the accepted tokens alone are right.
  const auto drafts = step.draws ? step.draws - 1 : 0;
  const auto accepted = out.tokens.empty() ? 0 : static_cast<int64_t>(out.tokens.size()) - 1;
  s.computed += step.tokens - drafts + accepted;
  s.drafted = std::min(s.drafted, s.computed);
  s.tokens.insert(s.tokens.end(), out.tokens.begin(), out.tokens.end());
  if (s.request.sampling.penalizes())
    for (Token t : out.tokens) ++s.counts[t].generated;
  s.drafts.clear();
  s.allowed.clear();
  s.described += static_cast<int64_t>(out.prompt_logprobs.size());
  publish(s);
  stats_.computed_tokens += step.tokens;
  stats_.generated_tokens += static_cast<int64_t>(out.tokens.size());
  stats_.proposed_tokens += drafts;
  stats_.accepted_tokens += accepted;
}

void Engine::check_logits(const std::vector<Step>& steps, const Tensor& logits) const {
  int64_t rows = 0;
  for (const Step& step : steps) rows += step.logit_rows;
  WT_CHECK(logits.ndim() == 2 && logits.size(0) == rows && logits.size(1) == options_.vocab_size, ShapeError,
           "expected logits [", rows, ", ", options_.vocab_size, "], got ", AsShape{logits.sizes()});
}

std::vector<Output> Engine::finish_step(const Tensor& logits) {
  const Tensor values = on_host(logits);
  const std::lock_guard lock(mutex_);
  check_logits(step_, logits);
  std::vector<const float*> rows;
  const auto* next = static_cast<const float*>(values.data());
  for (const Step& step : step_) {
    rows.push_back(next);
    next += step.logit_rows * options_.vocab_size;
  }
  std::vector<Output> out(step_.size());
  kernels::cpu::parallel_for(static_cast<int64_t>(step_.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      out[i] = draw(step_[i], rows[i]);
  });
  ++stats_.steps;
  for (size_t i = 0; i < step_.size(); ++i) apply(step_[i], out[i]);
  for (size_t i = 0; i < step_.size(); ++i)
    if (step_[i].sequence->aborted)
      out[i] = {};
    else if (out[i].finish != Finish::None)
      step_[i].sequence->aborted = true;
  end_step();
  std::erase_if(out, [](const Output& o) {
    return o.tokens.empty() && o.prompt_logprobs.empty() && o.finish == Finish::None;
  });
  return out;
}

void Engine::cancel_step() {
  const std::lock_guard lock(mutex_);
  end_step();
}

void Engine::end_step() {
  end_draft();
  for (const Step& step : step_)
    if (step.sequence->aborted) remove(*step.sequence);
  step_.clear();
}

// No step has begun while there is a draft.
void Engine::end_draft() {
  for (const Step& step : draft_)
    if (step.sequence->aborted) remove(*step.sequence);
  draft_.clear();
}

Batch Engine::begin_draft() {
  const std::lock_guard lock(mutex_);
  WT_CHECK(step_.empty(), Error, "begin_draft: the step before is neither finished nor cancelled");
  end_draft();
  int64_t left = options_.limits.max_num_batched_tokens;
  for (const auto& [id, s] : running_) {
    if (s->known() - s->computed != 1) continue;
    const auto end = s->known() + static_cast<int64_t>(s->drafts.size());
    const auto room = static_cast<int64_t>(s->pages.size()) * kPageTokens;
    const int64_t tokens = std::min(end - s->drafted, left);
    if (end > room || tokens < 1) continue;
    const int64_t rows = s->drafted + tokens == end ? 1 : 0;
    draft_.push_back({s, s->drafted, tokens, rows, rows});
    left -= tokens;
  }
  return batch_of(draft_);
}

void Engine::finish_draft(const Tensor& logits) {
  const Tensor rows = on_host(logits);
  const std::lock_guard lock(mutex_);
  check_logits(draft_, logits);
  const auto* row = static_cast<const float*>(rows.data());
  std::vector<float> values;
  for (const Step& step : draft_) {
    Sequence& s = *step.sequence;
    s.drafted = step.end();
    if (!step.draws) continue;
    if (s.aborted) {
      row += options_.vocab_size;
      continue;
    }
    values.assign(row, row + options_.vocab_size);
    row += options_.vocab_size;
    if (s.request.constrained && s.allowed.size() <= s.drafts.size()) continue;  // nothing may come there
    TokenCounts counts = s.counts;
    if (s.request.sampling.penalizes())
      for (Token t : s.drafts) ++counts[t].generated;
    if (!has_probabilities(values)) continue;  // a draft model's NaN is no error: it proposes nothing
    constrain(s, counts, static_cast<int64_t>(s.drafts.size()), values);
    if (!has_probabilities(values)) continue;
    // As the model's own draw will be, with the same noise: then the two agree most often.
    s.drafts.push_back(sample(values, s.request.sampling, static_cast<uint64_t>(step.end())));
  }
  end_draft();
}

}  // namespace warptape::inference
