// Groups of ranks and the calls between them.
#include "bindings/distributed/distributed.h"

#include <pybind11/chrono.h>
#include <pybind11/native_enum.h>
#include <pybind11/stl.h>

#include "bindings/caller.h"
#include "distributed/group/world.h"

namespace warptape::bindings {

namespace py = pybind11;
using namespace distributed;

// A rank's context, for ranks that are threads.
struct Rank {
  std::shared_ptr<RankContext> context = std::make_shared<RankContext>();
};
template <>
inline constexpr bool kBound<Work> = true;
template <>
inline constexpr bool kBound<Rank> = true;

namespace {

std::optional<Milliseconds> to_ms(const std::optional<Timeout>& t) {
  return t ? std::optional(t->ms) : std::nullopt;
}

std::shared_ptr<Work> run(ProcessGroup& group, CollectiveOp op, const py::sequence& inputs,
                          const py::sequence& outputs, ReduceOp reduce, int root, int tag, bool async,
                          std::optional<Timeout> timeout) {
  Collective call{op, reduce, root, tag, tensors_of(inputs, name_of(op)), tensors_of(outputs, name_of(op))};
  std::string site = call_site();
  GilRelease unlocked;
  return group.run(std::move(call), std::move(site), async, to_ms(timeout));
}

// Of (op, tensor, rank, tag).
std::vector<std::shared_ptr<Work>> run_batch(
    ProcessGroup& group, const std::vector<std::tuple<CollectiveOp, py::object, int, int>>& list) {
  std::vector<Collective> calls;
  for (auto& [op, tensor, rank, tag] : list) {
    auto tensors = tensors_of(py::make_tuple(tensor), name_of(op));
    const bool sends = op == CollectiveOp::Send;
    calls.push_back({op, ReduceOp::Sum, rank, tag, {}, {}});
    (sends ? calls.back().inputs : calls.back().outputs) = std::move(tensors);
  }
  std::string site = call_site();
  GilRelease unlocked;
  return group.run_batch(std::move(calls), site);
}

void bind_groups(py::module_& m) {
  py::class_<Work, std::shared_ptr<Work>>(m, "Work", "A call between ranks on its way.")
      .def("is_completed", &Work::is_completed, py::call_guard<GilRelease>(),
           "Whether the call is over, well or not.")
      .def(
          "wait",
          [](Work& w, std::optional<Timeout> timeout) {
            w.wait(timeout && timeout->ms.count() == 0 ? std::nullopt : to_ms(timeout));
            return true;
          },
          py::arg("timeout") = py::none(), py::call_guard<GilRelease>(),
          "Returns True when the call is over and its outputs hold the result.\n\n"
          "Args: timeout (timedelta). Raises: DistBackendError, naming the rank and the call.")
      .def(
          "is_success", [](Work& w) { return w.is_completed() && !w.exception(); },
          "Whether it is over and went well.")
      .def(
          "exception",
          [](Work& w) -> py::object {
            if (auto error = w.exception()) try {
                std::rethrow_exception(error);
              } catch (...) {
                set_python_error();
                py::error_already_set raised;
                return raised.value();
              }
            return py::none();
          },
          "What went wrong, as an exception; None while it is under way, and when all went well.")
      .def(
          "result", [](Work& w) { return py::reinterpret_steal<py::object>(wrap_list(w.outputs())); },
          "The list of outputs, which hold the result once the call is over.")
      .def(
          "get_future",
          [](py::object self) { return py::module_::import("warptape.core.futures").attr("_of_work")(self); },
          "A Future of the list of outputs.")
      .def("_source_rank", &Work::source_rank);

  py::class_<ProcessGroup, std::shared_ptr<ProcessGroup>>(m, "ProcessGroup",
                                                          "A group of ranks: a value, equal only to itself.")
      .def("rank", &ProcessGroup::rank, "This rank's number in the group.")
      .def("size", &ProcessGroup::size, "Ranks in the group.")
      .def_property_readonly("group_name", &ProcessGroup::name, "Its name, the same on all ranks.")
      .def_property_readonly("_ranks", &ProcessGroup::ranks)
      .def_property_readonly("_timeout", &ProcessGroup::timeout)
      .def("_set_timeout", [](ProcessGroup& g, Timeout t) { g.set_timeout(t.ms); })
      .def("_backend_name",
           [](ProcessGroup& g, bool cuda) {
             return g.backend_name(cuda ? DeviceType::CUDA : DeviceType::CPU);
           })
      .def("_run", run, py::arg("op"), py::arg("inputs"), py::arg("outputs"),
           py::arg("reduce") = ReduceOp::Sum, py::arg("root") = 0, py::arg("tag") = 0,
           py::arg("async_op") = false, py::arg("timeout") = py::none())
      .def("_run_batch", run_batch)
      .def("_abort", &ProcessGroup::abort, py::call_guard<GilRelease>())
      .def("_explain", &ProcessGroup::explain, py::call_guard<GilRelease>())
      .def("_close", &ProcessGroup::close, py::call_guard<GilRelease>());
}

void bind_worlds(py::module_& m) {
  static thread_local std::shared_ptr<RankContext> entered;  // it must not end before the thread leaves it
  py::class_<Rank>(m, "_Rank", "The context of a rank that is a thread of this process.")
      .def(py::init([](int threads) {
             Rank r;
             const RankContext& here = rank_context();
             r.context->default_dtype = here.default_dtype;
             r.context->default_device = here.default_device;
             r.context->deterministic_algorithms = here.deterministic_algorithms;
             r.context->num_threads = threads;
             return r;
           }),
           py::arg("threads"))
      .def_static(
          "here", [] { return entered ? std::optional<Rank>(Rank{entered}) : std::nullopt; },
          "The calling thread's, for a thread that works for it; None where ranks are processes.")
      .def("enter", [](Rank& r) { set_rank_context((entered = r.context).get()); })
      .def("leave", [](Rank&) {
        set_rank_context(nullptr);
        entered.reset();
      });

  m.def(
      "_rank_key", [] { return reinterpret_cast<uintptr_t>(&rank_context()); },
      "A number that tells the ranks of this process apart.");
  m.def(
      "_join",
      [](int rank, int size, std::string job, std::shared_ptr<Store> store, Timeout timeout) {
        rank_context().world =
            std::make_shared<World>(rank, size, std::move(job), std::move(store), timeout.ms);
        dump_on_signal();
      },
      py::arg("rank"), py::arg("size"), py::arg("job"), py::arg("store").none(false), py::arg("timeout"));
  m.def("_has_backend", has_backend);
  m.def("_call_site", call_site);
  m.def("_check_process", [](const std::string& what) { current_world().check_process(what); });
  m.def("_leave", [] {
    auto world = std::move(rank_context().world);
    GilRelease unlocked;
    if (world) world->leave();
    world.reset();
  });
  m.def(
      "_new_group",
      [](std::vector<int> ranks, std::string name, std::string cpu, std::string cuda, Timeout timeout) {
        return ProcessGroup::make(current_world(), std::move(ranks),
                                  {std::move(name), std::move(cpu), std::move(cuda), timeout.ms});
      },
      py::call_guard<GilRelease>());
  m.def("_waited", [] { return 1e-9 * static_cast<double>(current_world().waited.load()); });
  m.def("_dump_flight_record", [](const std::string& reason) {
    GilRelease unlocked;
    return dump_flight_record(current_world(), reason);
  });
}

}  // namespace

void init_distributed(py::module_& module) {
  py::module_ m = module.def_submodule("_distributed");
  init_distributed_store(m);
  py::native_enum<ReduceOp>(m, "ReduceOp", "enum.Enum", "How the values of the ranks become one.")
      .value("SUM", ReduceOp::Sum)
      .value("AVG", ReduceOp::Avg)
      .value("PRODUCT", ReduceOp::Product)
      .value("MIN", ReduceOp::Min)
      .value("MAX", ReduceOp::Max)
      .value("BAND", ReduceOp::BitAnd)
      .value("BOR", ReduceOp::BitOr)
      .value("BXOR", ReduceOp::BitXor)
      .finalize();
  py::native_enum<CollectiveOp> ops(m, "_Op", "enum.Enum");
  for (size_t i = 0; i < std::size(kCollectives); ++i)
    ops.value(kCollectives[i].name, static_cast<CollectiveOp>(i));
  ops.finalize();
  bind_groups(m);
  bind_worlds(m);
  init_distributed_reducer(m);
  init_distributed_pipeline(m);
  refuse_pickling(m);
}

}  // namespace warptape::bindings
