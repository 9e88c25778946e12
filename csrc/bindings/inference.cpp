// The engine of warptape.inference: see csrc/inference/engine.h.
#include "bindings/bound_object.h"
#include "bindings/common.h"
#include "inference/engine.h"
#include "inference/speculate.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace warptape::bindings {
template <>
inline constexpr bool kBound<inference::Engine> = true;

namespace {
using inference::Batch;
using inference::Engine;
using inference::EngineOptions;
using inference::Request;
using inference::Token;

py::object object(const Tensor& t) { return py::reinterpret_steal<py::object>(checked(wrap(t)).release()); }

EngineOptions options(int64_t pages, int64_t max_model_len, int64_t vocab_size, int64_t max_num_seqs,
                      int64_t max_num_batched_tokens, int64_t max_prefill_beside_decode,
                      bool enable_prefix_caching, int64_t num_speculative_tokens, int64_t prompt_lookup_min,
                      int64_t prompt_lookup_max) {
  return {.limits = {max_num_seqs, max_num_batched_tokens, max_prefill_beside_decode},
          .pages = pages,
          .max_model_len = max_model_len,
          .vocab_size = vocab_size,
          .enable_prefix_caching = enable_prefix_caching,
          .num_speculative_tokens = num_speculative_tokens,
          .prompt_lookup_min = prompt_lookup_min,
          .prompt_lookup_max = prompt_lookup_max};
}

// The attributes of a Python object that has the names of vLLM's SamplingParams.
Request request(std::vector<Token> prompt, const py::object& params) {
  Request r;
  r.prompt = std::move(prompt);
  const auto get = [&params](const char* name, auto& value) {
    value = params.attr(name).cast<std::remove_reference_t<decltype(value)>>();
  };
  get("temperature", r.sampling.temperature);
  get("top_p", r.sampling.top_p);
  get("min_p", r.sampling.min_p);
  get("top_k", r.sampling.top_k);
  get("presence_penalty", r.sampling.presence_penalty);
  get("frequency_penalty", r.sampling.frequency_penalty);
  get("repetition_penalty", r.sampling.repetition_penalty);
  get("max_tokens", r.max_tokens);
  get("min_tokens", r.min_tokens);
  const py::object bias = params.attr("logit_bias");
  if (!bias.is_none())
    for (auto [token, value] : bias.cast<py::dict>())
      r.sampling.logit_bias.emplace_back(token.cast<Token>(), value.cast<float>());
  const py::object logprobs = params.attr("logprobs");
  if (!logprobs.is_none()) r.logprobs = logprobs.cast<int64_t>();
  return r;
}

py::dict batch(const Batch& b) {
  py::dict out;
  out["requests"] = b.requests;
  out["adapters"] = b.adapters;
  out["drafts"] = b.drafts;
  out["tokens"] = object(b.tokens);
  out["page_table"] = object(b.page_table);
  out["starts"] = object(b.starts);
  out["lengths"] = object(b.lengths);
  out["logit_rows"] = object(b.logit_rows);
  return out;
}

py::list logprobs(const std::vector<std::vector<inference::Logprob>>& tokens) {
  py::list out;
  for (const auto& of_token : tokens) {
    py::list entries;
    for (const inference::Logprob& l : of_token) entries.append(py::make_tuple(l.token, l.logprob, l.rank));
    out.append(entries);
  }
  return out;
}

// [(request, tokens, logprobs, finish, prompt_logprobs, cached tokens of the prompt)]
py::list outputs(const std::vector<inference::Output>& all) {
  constexpr const char* kFinish[] = {nullptr, "stop", "length", "error"};  // as in Finish
  py::list out;
  for (const inference::Output& o : all) {
    out.append(py::make_tuple(o.request, o.tokens, logprobs(o.logprobs), kFinish[static_cast<int>(o.finish)],
                              logprobs(o.prompt_logprobs), o.cached_tokens));
  }
  return out;
}

// Without the GIL, as all calls of the engine: another thread may have it, and wait for the engine.
using Unlocked = py::call_guard<GilRelease>;
Batch begin(Engine& e, Batch (Engine::*what)()) {
  const GilRelease release;
  return (e.*what)();
}

py::dict stats(const Engine& e) {
  inference::EngineStats s;
  int64_t waiting, running, idle;
  {
    const GilRelease release;
    s = e.stats(), waiting = e.waiting(), running = e.running(), idle = e.idle_pages();
  }
  py::dict out;
  out["steps"] = s.steps;
  out["computed_tokens"] = s.computed_tokens;
  out["generated_tokens"] = s.generated_tokens;
  out["preemptions"] = s.preemptions;
  out["prompt_tokens"] = s.prompt_tokens;
  out["cached_prompt_tokens"] = s.cached_prompt_tokens;
  out["proposed_tokens"] = s.proposed_tokens;
  out["accepted_tokens"] = s.accepted_tokens;
  out["waiting"] = waiting;
  out["running"] = running;
  out["idle_pages"] = idle;
  return out;
}

// Plain tuples in and out: (running, priority, arrival, known, computed, drafts, pages, own_pages, blocked).
py::tuple schedule(
    const std::vector<std::tuple<bool, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool>>&
        requests,
    int64_t max_num_seqs, int64_t max_num_batched_tokens, int64_t max_prefill_beside_decode,
    int64_t idle_pages) {
  std::vector<inference::Candidate> candidates;
  for (const auto& r : requests) candidates.push_back(std::make_from_tuple<inference::Candidate>(r));
  const inference::Plan plan = inference::schedule(
      candidates, {max_num_seqs, max_num_batched_tokens, max_prefill_beside_decode}, idle_pages);
  py::list shares;
  for (const inference::Share& s : plan.shares) shares.append(py::make_tuple(s.request, s.tokens, s.drafts));
  return py::make_tuple(shares, plan.preempted);
}

}  // namespace

void init_inference(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_schedule", schedule, "The scheduler alone: (shares, preempted), see csrc/inference/scheduler.h.");
  m.def("_token_logprobs", [](const py::object& logits, const std::vector<Token>& tokens) {
    const Tensor t = tensor_arg(logits.ptr(), "_token_logprobs");
    Tensor out;
    {
      const GilRelease release;
      out = inference::token_logprobs(t, tokens);
    }
    return object(out);
  });
  m.def("_propose_ngram",
        [](const std::vector<Token>& tokens, int64_t shortest, int64_t longest, int64_t count) {
          return inference::propose_ngram(tokens, shortest, longest, count);
        });
  m.attr("_PAGE_TOKENS") = inference::kPageTokens;
  py::class_<Engine>(m, "_Engine", py::module_local(), "See csrc/inference/engine.h.")
      .def(py::init([](int64_t pages, int64_t max_model_len, int64_t vocab_size, int64_t max_num_seqs,
                       int64_t max_num_batched_tokens, int64_t max_prefill_beside_decode,
                       bool enable_prefix_caching, int64_t num_speculative_tokens, int64_t prompt_lookup_min,
                       int64_t prompt_lookup_max) {
             return std::make_unique<Engine>(options(pages, max_model_len, vocab_size, max_num_seqs,
                                                     max_num_batched_tokens, max_prefill_beside_decode,
                                                     enable_prefix_caching, num_speculative_tokens,
                                                     prompt_lookup_min, prompt_lookup_max));
           }),
           py::kw_only(), py::arg("pages"), py::arg("max_model_len"), py::arg("vocab_size"),
           py::arg("max_num_seqs"), py::arg("max_num_batched_tokens"), py::arg("max_prefill_beside_decode"),
           py::arg("enable_prefix_caching"), py::arg("num_speculative_tokens"), py::arg("prompt_lookup_min"),
           py::arg("prompt_lookup_max"))
      .def(
          "add",
          [](Engine& e, std::vector<Token> prompt, const py::object& params, uint64_t seed,
             std::vector<Token> stop_token_ids, int64_t priority, int64_t salt, int64_t adapter,
             bool constrained, int64_t leader, int64_t prompt_logprobs, std::vector<Token> generated) {
            Request r = request(std::move(prompt), params);
            r.generated = std::move(generated);
            r.sampling.seed = seed;
            r.stop_token_ids = std::move(stop_token_ids);
            r.priority = priority;
            r.salt = salt;
            r.adapter = adapter;
            r.constrained = constrained;
            r.leader = leader;
            r.prompt_logprobs = prompt_logprobs;
            const GilRelease release;
            return e.add(std::move(r));
          },
          py::arg("prompt"), py::arg("params"), py::kw_only(), py::arg("seed"), py::arg("stop_token_ids"),
          py::arg("priority") = 0, py::arg("salt") = 0, py::arg("adapter") = 0,
          py::arg("constrained") = false, py::arg("leader") = -1, py::arg("prompt_logprobs") = -1,
          py::arg("generated") = std::vector<Token>())
      .def("abort", &Engine::abort, Unlocked())
      .def("allow", &Engine::allow, Unlocked())
      .def("ngram", py::overload_cast<int64_t>(&Engine::ngram, py::const_), Unlocked())
      .def("propose", &Engine::propose, Unlocked())
      .def("limit_prefill_beside_decode", &Engine::limit_prefill_beside_decode, Unlocked())
      .def("begin_draft", [](Engine& e) { return batch(begin(e, &Engine::begin_draft)); })
      .def("finish_draft",
           [](Engine& e, const py::object& logits) {
             const Tensor t = tensor_arg(logits.ptr(), "finish_draft");
             const GilRelease release;
             e.finish_draft(t);
           })
      .def("begin_step", [](Engine& e) { return batch(begin(e, &Engine::begin_step)); })
      .def("finish_step",
           [](Engine& e, const py::object& logits) {
             const Tensor t = tensor_arg(logits.ptr(), "finish_step");
             std::vector<inference::Output> out;
             {
               const GilRelease release;
               out = e.finish_step(t);
             }
             return outputs(out);
           })
      .def("cancel_step", &Engine::cancel_step, Unlocked())
      .def("stats", stats);
}

}  // namespace warptape::bindings
