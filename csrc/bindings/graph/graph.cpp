// Compiled regions as Python enters and leaves them.
#include "bindings/bound_object.h"
#include "bindings/common.h"
#include "graph/lower/min_cut.h"
#include "graph/record/region.h"
#include "graph/record/trace.h"
#include "graph/run/captured.h"
#include "kernels/fused/chain.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace warptape::bindings {
void init_replay(py::module_& m);  // replay.cpp

template <>
inline constexpr bool kBound<graph::Compiled> = true;
template <>
inline constexpr bool kBound<graph::Program> = true;

namespace {
py::list describe(const SmallVector<graph::Operand, 3>& operands) {
  py::list out;
  for (const graph::Operand& o : operands)
    out.append(py::make_tuple(o.memory, message(o.dtype, AsShape{o.sizes})));
  return out;
}

void wait_for_kernels(bool give_up) {
  if (!device_in_use(DeviceType::CUDA)) return;
  const GilRelease release;
  static kernels::Slot<kernels::WaitForChainsFn> slot{"wait_for_chains"};
  slot(launch_context({DeviceType::CUDA, 0}), give_up);
}

std::pair<int64_t, std::vector<bool>> min_cut(
    uint32_t nodes, const std::vector<std::tuple<uint32_t, uint32_t, int64_t>>& edges, uint32_t source,
    uint32_t sink) {
  graph::Network network;
  for (uint32_t k = 0; k < nodes; ++k) network.add_node();
  for (const auto& [from, to, capacity] : edges) network.add_edge(from, to, capacity);
  graph::Network::Cut cut = network.cut(source, sink);
  return {cut.capacity, std::move(cut.sink)};
}

void bind_program(py::module_& m) {
  using graph::Program;
  m.def("_wait_for_kernels", wait_for_kernels);
  m.def("_min_cut", min_cut, py::arg("nodes"), py::arg("edges"), py::arg("source"), py::arg("sink"),
        "(capacity, whether each node is on the sink's side) of the minimal cut that is nearest to the sink; "
        "edges: [(from, to, capacity)].");
  m.attr("_infinite_capacity") = graph::Network::kInfinite;
  py::class_<Program>(m, "_Program", py::module_local(), "A program of kernels: see csrc/graph/ir/ir.h.")
      .def_static("parse", &Program::parse)
      .def("text", &Program::text)
      .def_property_readonly_static("passes",
                                    [](const py::object&) {
                                      py::list out;
                                      for (const graph::ProgramPass& p : graph::program_passes())
                                        out.append(p.name);
                                      return out;
                                    })
      .def(
          "run_pass",
          [](Program& p, const std::string& name, int64_t recomputed, int64_t epilogue, int64_t row,
             int64_t prologue) {
            graph::ProgramOptions options;
            options.least_recomputed_bytes = recomputed;
            options.least_epilogue_bytes = epilogue;
            options.least_row_bytes = row;
            options.least_prologue_bytes = prologue;
            graph::run_pass(p, name, options);
          },
          py::arg("name"), py::arg("least_recomputed_bytes") = graph::kLeastRecomputedBytes,
          py::arg("least_epilogue_bytes") = graph::kLeastEpilogueBytes,
          py::arg("least_row_bytes") = graph::kLeastRowBytes,
          py::arg("least_prologue_bytes") = graph::kLeastPrologueBytes)
      .def_property_readonly(
          "memories",
          [](const Program& p) {
            py::list out;
            for (const graph::ProgramMemory& m : p.memories)
              out.append(py::make_tuple(m.bytes, m.in, m.out, m.recomputes));
            return out;
          },
          "[(bytes, in, out, recomputes)]")
      .def_property_readonly(
          "instructions",
          [](const Program& p) {
            py::list out;
            for (const graph::Insn& i : p.insns)
              out.append(py::make_tuple(i.name, i.in_backward, describe(i.in), describe(i.out)));
            return out;
          },
          "[(name, in_backward, read, written)] as they were recorded; what is read and written: [(memory, "
          "dtype and sizes)].")
      .def_property_readonly(
          "steps",
          [](const Program& p) {
            std::vector<std::vector<uint32_t>> out;
            for (const graph::Step& s : p.steps) out.push_back(s.insns);
            return out;
          },
          "The numbers of the instructions that run together, in order.");
}

template <class T, class Settings>
void bind_setting(py::class_<graph::Compiled, std::shared_ptr<graph::Compiled>>& c, const char* name,
                  T Settings::* setting) {
  c.def_property(
      name, [setting](const graph::Compiled& c) { return c.programs.*setting; },
      [setting](graph::Compiled& c, T value) { c.programs.*setting = value; });
}

void bind_settings(py::class_<graph::Compiled, std::shared_ptr<graph::Compiled>>& compiled) {
  using graph::Programs;
  bind_setting(compiled, "drops_copies", &Programs::drops_copies);
  bind_setting(compiled, "fuses", &Programs::fuses);
  bind_setting(compiled, "fuses_epilogues", &Programs::fuses_epilogues);
  bind_setting(compiled, "fuses_prologues", &Programs::fuses_prologues);
  bind_setting(compiled, "schedules", &Programs::schedules);
  bind_setting(compiled, "recomputes", &Programs::recomputes);
  bind_setting(compiled, "rematerializes", &Programs::rematerializes);
  bind_setting(compiled, "tunes", &Programs::tunes);
  bind_setting(compiled, "captures", &Programs::captures);
  bind_setting(compiled, "least_recomputed_bytes", &Programs::least_recomputed_bytes);
  bind_setting(compiled, "least_epilogue_bytes", &Programs::least_epilogue_bytes);
  bind_setting(compiled, "least_row_bytes", &Programs::least_row_bytes);
  bind_setting(compiled, "least_prologue_bytes", &Programs::least_prologue_bytes);
}

}  // namespace

void init_graph(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  using graph::Compiled;
  using graph::Region;
  graph::init();
  bind_program(m);
  py::class_<Compiled, std::shared_ptr<Compiled>> compiled(m, "_Compiled", py::module_local());
  compiled.def(py::init<>())
      .def_readwrite("fullgraph", &Compiled::fullgraph)
      .def_readwrite("adaptive", &Compiled::adaptive)
      .def("enter",
           [](Compiled& c) {
             return !graph::Tracer::current() && Region::of_thread().enter(c.shared_from_this());
           })
      .def("leave",
           [](Compiled&) {
             const GilRelease release;
             Region::of_thread().leave();
           })
      .def("abandon",
           [](Compiled&) {
             const auto recording = Region::of_thread().release_recording();
             const GilRelease release;
             try {
               Region::of_thread().leave();
             } catch (...) {  // the caller has an error already, which came first
               *graph::failed_op = nullptr;
             }
           })
      .def("programs",
           [](const Compiled& c) {
             py::list out;
             for (const auto& e : c.programs.all()) {
               py::dict d;
               d["text"] = e->program.text();
               d["recorded"] = py::cpp_function([e] { return e->program.recorded(); });
               d["instructions"] = e->program.insns.size();
               d["steps"] = e->program.steps.size();
               d["removed"] = e->program.removed;
               d["moved"] = e->program.moved;
               d["recomputed"] = e->program.recomputed;
               d["rematerialized"] = e->remat_calls.size();
               d["fused"] = e->program.fused;
               d["epilogues"] = e->program.epilogues();
               d["prologues"] = e->program.prologues();
               d["row_kernels"] = e->program.row_kernels;
               d["copies"] = e->program.copies;
               d["tuned"] = e->tuned();
               d["runs"] = e->runs.load();
               d["seconds"] = e->build_seconds;
               d["problem"] = e->problem_text();
               d["replays"] = e->captured ? e->captured->replays() : 0;
               out.append(d);
             }
             return out;
           })
      .def("counts", [](const Compiled& c) {
        py::dict out;
        out["calls"] = c.counts.calls.load();
        out["runs"] = c.counts.runs.load();
        out["reads"] = c.counts.reads.load();
        out["not_deferred"] = c.counts.not_deferred.load();
        out["read_by"] = c.counts.read_by.all();
        out["not_deferred_by"] = c.counts.not_deferred_by.all();
        const graph::ModeTuner::Report tuner = c.tuners.report();
        out["eager_calls"] = tuner.eager_calls;
        out["trials"] = tuner.trials;
        out["recorded_seconds"] = tuner.recorded;
        out["eager_seconds"] = tuner.eager;
        return out;
      });
  bind_settings(compiled);
  init_replay(m);
  m.def("_set_capture", [](bool on) { return Region::of_thread().set_capture(on); });
  m.def("_is_compiling", [] { return Region::of_thread().entered(); });
}

}  // namespace warptape::bindings
