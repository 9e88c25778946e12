// Runs elementwise instructions and kernels by rows a second time where that lowers the most memory in use at
// any one time: what is next read much later, as backward does, need not be kept until then if what it is
// computed from is there. The same instruction on the same bits gives the same bits.
//
// Note [Recomputation]: at the position with the most memory in use, some values are kept for later. What is
// best kept instead, and which instructions run again from it, is a minimal cut of the network of these
// instructions: a value is an edge with the bytes that keeping it costs at that position, none where it is in
// use there anyway; what is read later is at the sink, what cannot be computed again at the source. (Chen et
// al. 2016, arXiv 1604.06174, have the cheap operators; PyTorch's partitioner,
// functorch/_src/partitioners.py, cuts between forward and backward.) Here the position need not be where
// backward begins, and a cut is only a proposal: its parts, which share no value, are accepted one by one,
// and only those with which no position needs as much as the most so far. Values of a part that is not
// accepted are tried alone: a chain all of whose values backward reads would be computed at once, where every
// second one can be computed from the one before it. Then the same is done at the position that has the most
// in use now.
#include <algorithm>
#include <map>
#include <numeric>

#include "graph/ir/liveness.h"
#include "graph/lower/min_cut.h"

namespace warptape::graph {
namespace {

constexpr uint32_t kNever = UINT32_MAX;
constexpr int64_t kLeastPart = 256;  // values below this part of the peak are not worth a launch
// Bytes that are written again for each that is free at the peak; what fusion keeps in registers is not
// counted. With 8 a GPT's step in bfloat16 needs 24.9 MB, not 27.1, and takes 1.05 to 1.08 times as long, not
// 1.01 to 1.03.
constexpr int64_t kMostWork = 2;
constexpr int kMostRounds = 64;

// The instruction at `position` runs again before the one at `before`, as number `number` of those recorded.
struct Repeat {
  uint32_t position, before, number;
};

// See Note [Recomputation]: what is done at one position.
class Round {
 public:
  Round(Program& p, int64_t least_bytes);
  // Whether anything is computed again now that was not.
  bool run();

 private:
  struct Nodes {
    uint32_t in, out;
  };
  const Insn& at(uint32_t position) const { return program_.insns[program_.steps[position].insns[0]]; }
  uint32_t number_at(uint32_t position) const { return program_.steps[position].insns[0]; }
  int64_t bytes_of(uint32_t memory) const { return static_cast<int64_t>(program_.memories[memory].bytes); }
  // The first position behind the peak, or kNever, at which the memory is read.
  uint32_t read_later(uint32_t memory) const;
  bool is_live_past_peak(uint32_t memory) const;
  bool can_repeat(uint32_t position) const;
  bool stays(uint32_t memory, uint32_t from, uint32_t until, uint32_t number) const;
  int64_t cost(uint32_t memory) const;
  std::vector<uint32_t> cut() const;
  std::vector<Repeat> scheduled(std::vector<uint32_t> positions) const;
  std::vector<std::vector<Repeat>> parts(const std::vector<Repeat>& repeats) const;
  bool accept(const std::vector<Repeat>& part);
  std::optional<std::vector<int64_t>> change(const std::vector<Repeat>& part) const;
  void apply();

  Program& program_;
  Liveness uses_;
  std::vector<int64_t> in_use_;  // at each position, with what was accepted
  uint32_t peak_ = 0;            // the position with the most in use
  int64_t most_ = 0, least_;
  std::vector<uint32_t> renamed_;       // by memory: where its storage is first used under a later name
  std::vector<bool> needed_, dropped_;  // by memory: by what was accepted
  std::vector<Repeat> accepted_;
};

template <class F>
void each_memory(const SmallVector<Operand, 3>& operands, F&& f) {
  for (size_t k = 0; k < operands.size(); ++k) {
    const auto before = operands.begin() + static_cast<std::ptrdiff_t>(k);
    if (std::find_if(operands.begin(), before,
                     [&](const Operand& o) { return o.memory == operands[k].memory; }) == before)
      f(operands[k].memory);
  }
}

template <class F>
bool all_memories(const SmallVector<Operand, 3>& operands, F&& f) {
  return std::ranges::all_of(operands, [&](const Operand& o) { return f(o.memory); });
}

Round::Round(Program& p, int64_t least_bytes)
    : program_(p),
      uses_(p),
      in_use_(uses_.profile()),
      renamed_(p.memories.size(), kNever),
      needed_(p.memories.size()),
      dropped_(needed_) {
  const auto peak = std::ranges::max_element(in_use_);
  if (peak == in_use_.end()) return;
  peak_ = static_cast<uint32_t>(peak - in_use_.begin());
  most_ = *peak;
  least_ = std::max(least_bytes, most_ / kLeastPart);
  // Names of one storage follow each other: of a memory the next larger one counts.
  std::map<uint32_t, uint32_t> later;
  for (uint32_t m = static_cast<uint32_t>(p.memories.size()); m-- > 0;) {
    const auto [name, is_last] = later.try_emplace(p.storage_of(m), kNever);
    renamed_[m] = name->second;
    if (!uses_[m].writes.empty()) name->second = std::min(name->second, uses_[m].first());
  }
}

uint32_t Round::read_later(uint32_t memory) const {
  const auto& reads = uses_[memory].reads;
  const auto next = std::ranges::upper_bound(reads, peak_);
  return next == reads.end() ? kNever : *next;
}

// Whether a later reader is all that keeps it at the peak. What is first read behind the peak is better
// computed later, which fusion does.
bool Round::is_live_past_peak(uint32_t memory) const {
  const auto& reads = uses_[memory].reads;
  return bytes_of(memory) >= least_ && !reads.empty() && reads.front() < peak_ &&
         read_later(memory) != kNever && !std::ranges::binary_search(reads, peak_);
}

bool Round::can_repeat(uint32_t position) const {
  const Insn& insn = at(position);
  const bool cheap =
      insn.kind == CallKind::Elementwise || (insn.kind == CallKind::Kernel && insn.is_all_by_rows());
  return cheap && position < peak_ &&
         all_memories(
             insn.out,
             [&](uint32_t m) {
               return uses_.is_temporary(m) && uses_[m].writes.size() == 1 && renamed_[m] == kNever &&
                      all_memories(insn.in, [&](uint32_t other) { return other != m; });
             });
}

// Whether an instruction with that number that runs before the position `until` finds in the memory what it
// held at `from`.
bool Round::stays(uint32_t memory, uint32_t from, uint32_t until, uint32_t number) const {
  if (renamed_[memory] < until) return false;
  const auto& writes = uses_[memory].writes;
  return std::all_of(std::ranges::upper_bound(writes, from), writes.end(),
                     [&](uint32_t position) { return position >= until && number_at(position) >= number; });
}

// The bytes that keeping the memory's contents costs at the peak.
int64_t Round::cost(uint32_t memory) const {
  const ProgramMemory& m = program_.memories[memory];
  const Uses& uses = uses_[memory];
  if (m.out || (uses.writes.empty() && !m.in)) return 0;
  const bool may_go = is_live_past_peak(memory) && !m.in && can_repeat(uses.writes[0]);
  return uses.last() >= peak_ && !may_go ? 0 : bytes_of(memory);
}

// The positions of the instructions that run again: those behind the minimal cut.
std::vector<uint32_t> Round::cut() const {
  Network network;
  const uint32_t source = network.add_node(), sink = network.add_node();
  // Instructions from which something is computed that is read later, the last first: until where they would
  // run at the latest, and their nodes.
  std::map<uint32_t, std::pair<uint32_t, uint32_t>, std::greater<>> wanted;
  std::map<uint32_t, Nodes> values;
  const auto want = [&](uint32_t position, uint32_t until) {
    auto [found, is_new] = wanted.try_emplace(position, until, 0);
    if (is_new) found->second.second = network.add_node();
    found->second.first = std::max(found->second.first, until);
    return found->second.second;
  };
  const auto value = [&](uint32_t memory, uint32_t until, uint32_t reader) {
    const auto [found, is_new] = values.try_emplace(memory);
    Nodes& nodes = found->second;
    if (is_new) {
      nodes = {network.add_node(), network.add_node()};
      network.add_edge(nodes.in, nodes.out, cost(memory));
    }
    const auto& writes = uses_[memory].writes;
    const bool computed = !writes.empty() && writes[0] < reader && can_repeat(writes[0]);
    if (const uint32_t read = read_later(memory); read != kNever) until = std::max(until, read);
    const uint32_t from = computed ? want(writes[0], until) : source;
    if (is_new) network.add_edge(from, nodes.in, Network::kInfinite);
    return nodes.out;
  };
  for (uint32_t position = 0; position < peak_; ++position)
    if (can_repeat(position))
      each_memory(at(position).out, [&](uint32_t m) {
        if (is_live_past_peak(m)) network.add_edge(value(m, 0, peak_), sink, Network::kInfinite);
      });
  for (auto next = wanted.begin(); next != wanted.end(); ++next) {
    const auto [position, user] = *next;
    const auto [until, node] = user;
    const bool possible = all_memories(at(position).in, [&, position = position, until = until](uint32_t m) {
      return stays(m, position, until, 0);
    });
    if (!possible) network.add_edge(source, node, Network::kInfinite);
    if (possible)
      each_memory(at(position).in, [&, position = position, until = until, node = node](uint32_t m) {
        network.add_edge(value(m, until, position), node, Network::kInfinite);
      });
  }
  const Network::Cut cut = network.cut(source, sink);
  std::vector<uint32_t> out;
  for (const auto& [position, user] : wanted)
    if (cut.sink[user.second]) out.push_back(position);
  return out;
}

// Each instruction runs again before the first that reads what it makes, be it itself one that runs again.
// They come and are returned the last first; those that nobody reads are left out.
std::vector<Repeat> Round::scheduled(std::vector<uint32_t> positions) const {
  std::vector<Repeat> out;
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> wanted;  // by memory
  for (uint32_t position : positions) {
    Repeat repeat{position, kNever, kNever};
    each_memory(at(position).out, [&](uint32_t m) {
      if (const auto found = wanted.find(m); found != wanted.end()) {
        repeat.before = std::min(repeat.before, found->second.first);
        repeat.number = std::min(repeat.number, found->second.second);
      }
      for (auto read = std::ranges::upper_bound(uses_[m].reads, peak_); read != uses_[m].reads.end();
           ++read) {
        repeat.before = std::min(repeat.before, *read);
        repeat.number = std::min(repeat.number, number_at(*read));
      }
    });
    if (repeat.before == kNever) continue;
    repeat.number = std::min(repeat.number, number_at(repeat.before));
    each_memory(at(position).in, [&](uint32_t m) {
      auto& [before, number] = wanted.try_emplace(m, kNever, kNever).first->second;
      before = std::min(before, repeat.before);
      number = std::min(number, repeat.number);
    });
    out.push_back(repeat);
  }
  return out;
}

// Those that read what another makes, or for which the same value is kept longer, are of one part.
std::vector<std::vector<Repeat>> Round::parts(const std::vector<Repeat>& repeats) const {
  std::vector<size_t> parent(repeats.size());
  std::iota(parent.begin(), parent.end(), size_t{0});
  const auto root = [&](size_t k) {
    while (parent[k] != k) k = parent[k] = parent[parent[k]];
    return k;
  };
  std::map<uint32_t, size_t> users;  // of memories
  for (size_t k = 0; k < repeats.size(); ++k) {
    const auto join = [&](uint32_t m) { parent[root(k)] = root(users.try_emplace(m, k).first->second); };
    each_memory(at(repeats[k].position).out, join);
    each_memory(at(repeats[k].position).in, [&](uint32_t m) {
      const bool renamed = std::ranges::any_of(repeats, [&](const Repeat& other) {
        return !all_memories(at(other.position).out, [&](uint32_t output) { return output != m; });
      });
      if (renamed || (!program_.memories[m].out && uses_[m].last() < repeats[k].before)) join(m);
    });
  }
  std::map<size_t, std::vector<Repeat>> by_root;
  for (size_t k = 0; k < repeats.size(); ++k) by_root[root(k)].push_back(repeats[k]);
  std::vector<std::vector<Repeat>> out;
  for (auto& [first, part] : by_root) out.push_back(std::move(part));
  return out;
}

// By how much more is in use at each position if the part runs again, counting what it makes until the
// position before which it runs; nothing where it cannot.
std::optional<std::vector<int64_t>> Round::change(const std::vector<Repeat>& part) const {
  std::vector<int64_t> bytes(in_use_.size() + 1, 0);
  const auto add = [&](uint32_t first, uint32_t last, int64_t size) {
    if (first > last) return;
    bytes[first] += size;
    bytes[last + 1] -= size;
  };
  std::map<uint32_t, uint32_t> needed;  // by memory: the last position before which one of the part reads it
  for (const Repeat& r : part)
    if (!all_memories(at(r.position).in, [&](uint32_t m) {
          auto& last = needed.try_emplace(m, 0).first->second;
          last = std::max(last, r.before);
          return !dropped_[m] && stays(m, r.position, r.before, r.number);
        }))
      return {};
  for (const Repeat& r : part) {
    bool free = true;
    each_memory(at(r.position).out, [&](uint32_t m) {
      const auto& reads = uses_[m].reads;
      const auto next = std::ranges::lower_bound(reads, r.before);
      const uint32_t early = next == reads.begin() ? r.position : *(next - 1);
      const auto read = needed.find(m);
      const uint32_t late =
          std::max(reads.empty() ? 0 : reads.back(), read == needed.end() ? 0 : read->second);
      add(early + 1, uses_[m].last(), -bytes_of(m));
      add(r.before, std::max(r.before, late), bytes_of(m));
      free &= !needed_[m] && !dropped_[m];
      if (read != needed.end()) needed.erase(read);
    });
    if (!free) return {};
  }
  for (const auto& [m, before] : needed)
    if (!program_.memories[m].out && (program_.memories[m].in || uses_.is_temporary(m)))
      add(uses_[m].last() + 1, before, bytes_of(m));
  bytes.pop_back();
  std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
  return bytes;
}

bool Round::accept(const std::vector<Repeat>& part) {
  const auto bytes = change(part);
  int64_t work = 0;
  for (const Repeat& r : part)
    each_memory(at(r.position).out, [&](uint32_t m) {
      if (at(r.position).kind == CallKind::Kernel || read_later(m) != kNever) work += bytes_of(m);
    });
  if (!bytes || -(*bytes)[peak_] < least_ || -(*bytes)[peak_] * kMostWork < work) return false;
  for (size_t k = 0; k < in_use_.size(); ++k)
    if ((*bytes)[k] > 0 && in_use_[k] + (*bytes)[k] >= most_) return false;
  for (size_t k = 0; k < in_use_.size(); ++k) in_use_[k] += (*bytes)[k];
  for (const Repeat& r : part) {
    each_memory(at(r.position).in, [&](uint32_t m) { needed_[m] = true; });
    accepted_.push_back(r);
  }
  for (const Repeat& r : part) each_memory(at(r.position).out, [&](uint32_t m) { dropped_[m] = true; });
  return true;
}

bool Round::run() {
  if (in_use_.empty()) return false;
  for (std::vector<Repeat>& part : parts(scheduled(cut()))) {
    if (accept(part) || part.size() == 1) continue;
    const auto bytes = [&](const Repeat& r) { return bytes_of(at(r.position).out[0].memory); };
    std::ranges::stable_sort(part, std::greater<>(), bytes);
    for (const Repeat& r : part) accept(scheduled({r.position}));
  }
  if (accepted_.empty() || program_.memories.size() + program_.insns.size() > kMaxMemories) return false;
  apply();
  return true;
}

// Each result that is computed again has a name of its own, which later instructions read.
void Round::apply() {
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> renamed;  // by memory: its new name, and from where on
  std::vector<Insn> added;
  std::ranges::sort(accepted_, {}, [](const Repeat& r) { return std::pair(r.before, r.position); });
  for (const Repeat& r : accepted_) {
    Insn& insn = added.emplace_back(at(r.position));
    for (Operand& o : insn.out) {
      const auto [name, is_new] =
          renamed.try_emplace(o.memory, static_cast<uint32_t>(program_.memories.size()), r.before);
      if (is_new) {
        program_.memories.push_back(program_.memories[o.memory]);
        program_.memories.back().recomputes = program_.storage_of(o.memory);
      }
      o.memory = name->second.first;
    }
  }
  const auto rename = [&](Insn& insn, uint32_t position) {
    for (Operand& o : insn.in)
      if (const auto found = renamed.find(o.memory);
          found != renamed.end() && position >= found->second.second)
        o.memory = found->second.first;
  };
  for (size_t k = 0; k < accepted_.size(); ++k) rename(added[k], accepted_[k].before);
  for (uint32_t position = 0; position < program_.steps.size(); ++position)
    rename(program_.insns[number_at(position)], position);
  // They get the numbers before those of their readers, in the order in which they were recorded.
  std::vector<size_t> order(accepted_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(
      order, {}, [&](size_t k) { return std::pair(accepted_[k].number, number_at(accepted_[k].position)); });
  std::vector<Insn> insns;
  std::vector<uint32_t> moved(program_.insns.size()), numbers(accepted_.size());
  size_t next = 0;
  for (uint32_t old = 0; old < program_.insns.size(); ++old) {
    for (; next < order.size() && accepted_[order[next]].number == old; ++next) {
      numbers[order[next]] = static_cast<uint32_t>(insns.size());
      insns.push_back(std::move(added[order[next]]));
    }
    moved[old] = static_cast<uint32_t>(insns.size());
    insns.push_back(std::move(program_.insns[old]));
  }
  std::vector<Step> steps;
  next = 0;
  for (uint32_t position = 0; position < program_.steps.size(); ++position) {
    for (; next < accepted_.size() && accepted_[next].before == position; ++next)
      steps.push_back({{numbers[next]}});
    steps.push_back({{moved[number_at(position)]}});
  }
  program_.insns = std::move(insns);
  program_.steps = std::move(steps);
  program_.recomputed += static_cast<int64_t>(accepted_.size());
}

}  // namespace

void recompute(Program& program, const ProgramOptions& options) {
  for (int k = 0; k < kMostRounds && Round(program, options.least_recomputed_bytes).run(); ++k) {
  }
}

}  // namespace warptape::graph
