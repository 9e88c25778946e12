// The key-value stores. Whatever may wait lets the GIL go.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/common.h"
#include "bindings/distributed/distributed.h"
#include "core/checksum/crc32c.h"
#include "core/checksum/sha256.h"
#include "distributed/store/store_client.h"
#include "distributed/store/store_server.h"

namespace warptape::bindings {

namespace py = pybind11;
using namespace distributed;

template <>
inline constexpr bool kBound<Endpoint> = true;
template <>
inline constexpr bool kBound<StoreServer> = true;

namespace {

using Keys = std::vector<std::string>;

py::bytes pop(Store& s, const std::string& queue, bool block) {
  std::string value;
  try {
    GilRelease release;
    value = s.pop(queue, block ? s.timeout() : Milliseconds(0));
  } catch (const DistStoreError&) {
    if (block) throw;
    const std::string text = "store.queue_pop: the queue '" + queue + "' is empty";
    py::set_error(py::module_::import("warptape._C").attr("QueueEmptyError"), text.c_str());
    throw py::error_already_set();
  }
  return value;
}

py::list multi_get(Store& s, const Keys& keys) {
  std::vector<std::string> values;
  {
    GilRelease release;
    for (const std::string& key : keys) values.push_back(s.get(key));
  }
  py::list out;
  for (const std::string& value : values) out.append(py::bytes(value));
  return out;
}

void multi_set(Store& s, const Keys& keys, const Keys& values) {
  WT_CHECK(keys.size() == values.size(), ValueError, "store.multi_set: expected as many values as keys, got ",
           keys.size(), " keys and ", values.size(), " values");
  for (size_t i = 0; i < keys.size(); ++i) s.set(keys[i], values[i]);
}

using StoreClass = py::class_<Store, std::shared_ptr<Store>>;

void bind_store(StoreClass& store) {
  using Release = py::call_guard<GilRelease>;
  store
      .def("set", &Store::set, Release(), py::arg("key"), py::arg("value"), "Sets the key to a str or bytes.")
      .def(
          "get",
          [](Store& s, const std::string& key) {
            std::string value;
            {
              GilRelease release;
              value = s.get(key);
            }
            return py::bytes(value);
          },
          py::arg("key"), "The key's value as bytes; waits for it. DistStoreError when the time is over.")
      .def("add", &Store::add, Release(), py::arg("key"), py::arg("amount"),
           "Adds to the number that the key holds (0 when new) and returns the sum.")
      .def(
          "compare_set",
          [](Store& s, const std::string& key, const std::string& expected, const std::string& desired) {
            std::string value;
            {
              GilRelease release;
              value = s.compare_set(key, expected, desired);
            }
            return py::bytes(value);
          },
          py::arg("key"), py::arg("expected_value"), py::arg("desired_value"),
          "Sets the key to desired_value if it holds expected_value, or is new and that is empty; returns "
          "what it holds then as bytes.")
      .def(
          "wait",
          [](Store& s, const Keys& keys, std::optional<Timeout> timeout) {
            s.wait(keys, timeout ? timeout->ms : s.timeout());
          },
          Release(), py::arg("keys"), py::arg("timeout") = py::none(),
          "Waits until all keys are set. DistStoreError when the time (a timedelta) is over.")
      .def("delete_key", &Store::remove, Release(), py::arg("key"), "Removes the key; whether it was there.")
      .def("num_keys", &Store::size, Release(), "How many keys are set.")
      .def(
          "check", [](Store& s, const Keys& keys) { return s.check(keys); }, Release(), py::arg("keys"),
          "Whether all keys are set; does not wait.")
      .def(
          "set_timeout", [](Store& s, Timeout t) { s.set_timeout(t.ms); }, py::arg("timeout"),
          "How long get and wait wait from now on: a timedelta.")
      .def_property_readonly("timeout", &Store::timeout, "How long get and wait wait: a timedelta.")
      .def("_shares_files", &Store::shares_files)
      .def(
          "_set_file",
          [](Store& s, const std::string& key, int fd) {
            File file(fd);  // the caller's
            try {
              s.set_file(key, file);
            } catch (...) {
              (void)file.release();
              throw;
            }
            (void)file.release();
          },
          Release(), py::arg("key"), py::arg("fd"))
      .def(
          "_get_file",
          [](Store& s, const std::string& key) { return s.get_file(key, s.timeout()).release(); }, Release(),
          py::arg("key"));
}

// What PyTorch calls the extended API, and queues.
void bind_lists(StoreClass& store) {
  using Release = py::call_guard<GilRelease>;
  store.def("list_keys", &Store::list, Release(), "The keys that are set, sorted; queues are not among them.")
      .def("append", &Store::append, Release(), py::arg("key"), py::arg("value"),
           "Adds bytes or a str to the end of what the key holds.")
      .def("multi_get", &multi_get, py::arg("keys"), "The keys' values as bytes; waits for them.")
      .def("multi_set", &multi_set, Release(), py::arg("keys"), py::arg("values"),
           "Sets each key to the value at its place.")
      .def("queue_push", &Store::push, Release(), py::arg("key"), py::arg("value"),
           "Adds a str or bytes to the end of the queue; makes the queue.")
      .def("queue_pop", &pop, py::arg("key"), py::arg("block") = true,
           "Takes the first value from the queue, as bytes; waits for one. DistStoreError when the time is "
           "over, QueueEmptyError at once without `block`.")
      .def("queue_len", &Store::length, Release(), py::arg("key"), "How many values the queue has.")
      .def(
          "clone", [](py::object store) { return store; }, "This store: any number of threads may use one.")
      .def(
          "has_extended_api", [](const Store&) { return true; },
          "True: append, multi_get and multi_set are here.");
}

}  // namespace

void init_distributed_store(py::module_& m) {
  StoreClass store(m, "Store",
                   "A key-value store through which ranks find each other. Keys are str, values bytes.");
  bind_store(store);
  bind_lists(store);
  py::class_<LocalStore, Store, std::shared_ptr<LocalStore>>(m, "HashStore",
                                                             "A store in this process, for its threads.")
      .def(py::init<>())
      .def("_close", &LocalStore::close);
  py::class_<PrefixStore, Store, std::shared_ptr<PrefixStore>>(m, "PrefixStore",
                                                               "Another store's keys under a prefix.")
      .def(py::init<std::string, std::shared_ptr<Store>>(), py::arg("prefix"), py::arg("store").none(false))
      .def_property_readonly("underlying_store", &PrefixStore::underlying, "The store that has the keys.");

  py::class_<Endpoint>(m, "Endpoint",
                       "Where a store is served: a Unix socket by name, TCP with a secret, or both.")
      .def(py::init([](std::string unix_name, std::string host, int port, std::string secret) {
             return Endpoint{std::move(unix_name), std::move(host), port, std::move(secret)};
           }),
           py::arg("unix_name") = "", py::arg("host") = "", py::arg("port") = 0, py::arg("secret") = "")
      .def_readonly("unix_name", &Endpoint::unix_name)
      .def_readonly("host", &Endpoint::host)
      .def_readonly("port", &Endpoint::port);
  py::class_<StoreServer, std::shared_ptr<StoreServer>>(m, "StoreServer",
                                                        "Serves a store until it is deleted.")
      .def(py::init<Endpoint&>(), py::call_guard<GilRelease>(), py::arg("endpoint"),
           "Puts the port that was taken into the endpoint.");
  py::class_<ServedStore, Store, std::shared_ptr<ServedStore>>(m, "ServedStore",
                                                               "A store that a StoreServer serves.")
      .def(py::init([](const Endpoint& endpoint, Timeout timeout, std::shared_ptr<StoreServer> server,
                       int rank, bool patient) {
             GilRelease release;
             return std::make_shared<ServedStore>(endpoint, timeout.ms, std::move(server), rank, patient);
           }),
           py::arg("endpoint"), py::arg("timeout"), py::arg("server") = nullptr, py::arg("rank") = -1,
           py::arg("patient") = true);

  m.def("is_loopback", is_loopback, py::arg("host"));
  m.def("_hmac_sha256", [](const std::string& key, const std::string& data) {
    Digest d = hmac_sha256(key, data);
    return py::bytes(d.data(), d.size());
  });
  const auto crc = [&m](const char* name, auto function) {
    m.def(
        name,
        [function](const py::buffer& data, uint32_t before) {
          const py::buffer_info bytes = data.request();
          WT_CHECK(bytes.itemsize == 1 && bytes.ndim == 1 && (bytes.size < 2 || bytes.strides[0] == 1),
                   ValueError, "_crc32c: expected contiguous bytes");
          GilRelease release;
          return function(bytes.ptr, static_cast<size_t>(bytes.size), before);
        },
        py::arg("data"), py::arg("before") = 0);
  };
  crc("_crc32c", crc32c);
  crc("_crc32c_by_table", crc32c_by_table);
}

}  // namespace warptape::bindings
