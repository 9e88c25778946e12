#include "distributed/transport/gloo/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "distributed/store/store_client.h"

namespace warptape::distributed {
namespace {

// The address that packets to `host` would leave from; nothing is sent. Empty where there is no way.
std::string address_towards(const std::string& host) {
  addrinfo hints = {}, *list = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  std::string result;
  if (::getaddrinfo(host.c_str(), "9", &hints, &list) != 0) return result;
  for (addrinfo* a = list; a && result.empty(); a = a->ai_next) {
    File s(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local = {};
    socklen_t size = sizeof local;
    char text[NI_MAXHOST];
    if (s && ::connect(s.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        ::getsockname(s.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof text, nullptr, 0,
                      NI_NUMERICHOST) == 0)
      result = text;
  }
  ::freeaddrinfo(list);
  return result;
}

std::string host_of(const Store& store) {
  const Store* s = &store;
  while (auto* prefix = dynamic_cast<const PrefixStore*>(s)) s = prefix->underlying().get();
  auto* served = dynamic_cast<const ServedStore*>(s);
  return served && served->endpoint().unix_name.empty() ? served->endpoint().host : "127.0.0.1";
}

}  // namespace

LocalAddress choose_address(Store& store, int rank, int size, Milliseconds timeout) {
  for (const char* variable : {"WARPTAPE_GLOO_INTERFACE", "GLOO_SOCKET_IFNAME"})
    if (const char* name = std::getenv(variable); name && *name) {
      store.set(message("address/", rank), "");
      return {name, ""};
    }
  std::string mine = address_towards(host_of(store));
  if (mine.empty()) mine = "127.0.0.1";
  store.set(message("address/", rank), mine);
  for (int r = 0; r < size && is_loopback(mine); ++r) {
    const std::string other = store.get(message("address/", r), timeout);
    if (!other.empty() && !is_loopback(other))
      if (std::string way = address_towards(other); !way.empty()) mine = way;
  }
  return {"", mine};
}

}  // namespace warptape::distributed
