// Which of this machine's addresses the ranks of a group find this one at.
#pragma once

#include "distributed/store/store.h"

namespace warptape::distributed {

// An interface's name or an address: what WARPTAPE_GLOO_INTERFACE or GLOO_SOCKET_IFNAME says, else the one
// from which the store's host is reached. Collective: a rank on the store's own host, which reaches that by
// loopback, takes the address from which it reaches a rank elsewhere.
struct LocalAddress {
  std::string interface, host;
};
LocalAddress choose_address(Store& store, int rank, int size, Milliseconds timeout);

}  // namespace warptape::distributed
