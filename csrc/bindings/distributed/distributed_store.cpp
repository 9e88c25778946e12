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
void bind_store(py::module_& m) {
  using Release = py::call_guard<GilRelease>;
  py::class_<Store, std::shared_ptr<Store>>(
      m, "Store", "A key-value store through which ranks find each other. Keys are str, values bytes.")
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

}  // namespace

void init_distributed_store(py::module_& m) {
  bind_store(m);
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
