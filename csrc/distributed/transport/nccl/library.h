// NCCL's functions, looked up when a group is first used: the plugin loads where there is no NCCL.
#pragma once

#include <nccl.h>

#include <string>

namespace warptape::distributed {

#define WT_NCCL_FUNCTIONS(F) \
  F(GetUniqueId)             \
  F(CommInitRankConfig)      \
  F(CommGetAsyncError)       \
  F(CommFinalize)            \
  F(CommDestroy)             \
  F(CommAbort)               \
  F(GetErrorString)          \
  F(GetLastError)            \
  F(GroupStart) F(GroupEnd) F(AllReduce) F(Broadcast) F(Reduce) F(AllGather) F(ReduceScatter) F(Send) F(Recv)

struct Nccl {
#define WT_NCCL_MEMBER(name) decltype(&::nccl##name) name;
  WT_NCCL_FUNCTIONS(WT_NCCL_MEMBER)
#undef WT_NCCL_MEMBER
};
// DeviceError that says where the library was looked for and what to install.
const Nccl& nccl();

// "NCCL: invalid usage (Duplicate GPU detected ...)"
std::string describe(ncclResult_t result, ncclComm_t comm);

}  // namespace warptape::distributed
