#include "inference/scheduler.h"

#include <algorithm>

namespace warptape::inference {
namespace {

class Scheduler {
 public:
  Scheduler(const std::vector<Candidate>& requests, const Limits& limits, int64_t idle_pages)
      : requests_(requests), limits_(limits), idle_(idle_pages), tokens_left_(limits.max_num_batched_tokens) {
    for (size_t i = 0; i < requests.size(); ++i) (requests[i].running ? running_ : waiting_).push_back(i);
    const auto before = [this](size_t a, size_t b) { return comes_before(a, b); };
    std::ranges::sort(running_, before);
    std::ranges::sort(waiting_, before);
  }

  Plan run() {
    for (size_t i = 0; i < running_.size(); ++i)  // running_ gets shorter where the last ones are preempted
      if (decodes(requests_[running_[i]])) decode(running_[i]);
    const bool beside_decode = !plan_.shares.empty();
    prefill_left_ = beside_decode ? std::min(limits_.max_prefill_beside_decode, tokens_left_) : tokens_left_;
    for (size_t i = 0; i < running_.size(); ++i)
      if (!decodes(requests_[running_[i]])) prefill(running_[i]);
    // Whoever lost its pages in this step comes before those that wait.
    if (plan_.preempted.empty())
      for (size_t i : waiting_)
        if (!requests_[i].blocked && !admit(i)) break;
    return std::move(plan_);
  }

 private:
  bool comes_before(size_t a, size_t b) const {
    const Candidate &x = requests_[a], &y = requests_[b];
    return x.priority != y.priority ? x.priority < y.priority : x.arrival < y.arrival;
  }
  static bool decodes(const Candidate& c) { return c.known - c.computed == 1; }
  static int64_t new_pages(const Candidate& c, int64_t tokens) {
    return std::max<int64_t>(pages_for(c.computed + tokens) - c.pages, 0);
  }

  // Takes back what `victim` was given in this step, and its pages.
  void preempt(size_t victim) {
    const auto given = std::ranges::find(plan_.shares, victim, &Share::request);
    if (given != plan_.shares.end()) {
      idle_ += new_pages(requests_[victim], given->tokens);
      tokens_left_ += given->tokens;
      plan_.shares.erase(given);
    }
    idle_ += requests_[victim].own_pages;
    std::erase(running_, victim);
    plan_.preempted.push_back(victim);
  }

  // Finds pages for as many tokens; preempts from the end of the order for it, `i` itself at last.
  bool make_room(size_t i, int64_t tokens) {
    while (new_pages(requests_[i], tokens) > idle_) {
      const size_t victim = running_.back();
      preempt(victim);
      if (victim == i) return false;
    }
    return true;
  }

  void give(size_t i, int64_t tokens, int64_t drafts) {
    idle_ -= new_pages(requests_[i], tokens);
    tokens_left_ -= tokens;
    plan_.shares.push_back({i, tokens, drafts});
  }

  void decode(size_t i) {
    if (tokens_left_ < 1) return;
    const Candidate& c = requests_[i];
    int64_t drafts = std::min(c.drafts, tokens_left_ - 1);
    if (new_pages(c, 1 + drafts) > idle_) drafts = 0;
    if (make_room(i, 1 + drafts)) give(i, 1 + drafts, drafts);
  }

  void prefill(size_t i) {
    const Candidate& c = requests_[i];
    const int64_t tokens = std::min({c.known - c.computed, prefill_left_, tokens_left_});
    if (tokens < 1 || !make_room(i, tokens)) return;
    give(i, tokens, 0);
    prefill_left_ -= tokens;
  }

  // Whether the request could begin.
  bool admit(size_t i) {
    const Candidate& c = requests_[i];
    const int64_t tokens = std::min({c.known - c.computed, prefill_left_, tokens_left_});
    if (tokens < 1) return false;
    // Room for all that is known and one token more: a chunk alone would soon be preempted.
    const auto room = [&] { return new_pages(c, c.known - c.computed + 1) + c.own_pages <= idle_; };
    const auto seat = [&] { return static_cast<int64_t>(running_.size()) < limits_.max_num_seqs; };
    while (!room() || !seat()) {
      if (running_.empty() || requests_[running_.back()].priority <= c.priority) return false;
      preempt(running_.back());
    }
    // Of the pages that this request begins with, some may have become idle only now.
    if (!plan_.preempted.empty()) return false;
    idle_ -= c.own_pages;
    running_.insert(
        std::ranges::upper_bound(running_, i, [this](size_t a, size_t b) { return comes_before(a, b); }), i);
    give(i, tokens, 0);
    prefill_left_ -= tokens;
    return true;
  }

  const std::vector<Candidate>& requests_;
  const Limits& limits_;
  int64_t idle_, tokens_left_, prefill_left_ = 0;
  std::vector<size_t> running_, waiting_;
  Plan plan_;
};

}  // namespace

Plan schedule(const std::vector<Candidate>& requests, const Limits& limits, int64_t idle_pages) {
  return Scheduler(requests, limits, idle_pages).run();
}

}  // namespace warptape::inference
