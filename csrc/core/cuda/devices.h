// The devices of this machine: which one a thread uses, what they are, where their kernels report faults.
#pragma once

#include "core/device_runtime.h"

namespace warptape::cuda {

inline constexpr int kMaxDevices = 64;

// Set once by the plugin's start.
void set_device_count(int count);
int device_count();
// DeviceError that names `what` for an ordinal that there is not.
void check_device(int index, const char* what);

int current_device();
// A device that this process has set up already, the thread's own if possible; -1 if there is none.
int used_device();
void set_current_device(int index);

DeviceProperties properties(int index);
bool can_access_peer(int index, int peer);
// Lets copies between the two go directly where the hardware can; once per pair.
void enable_peer_access(int index, int peer);

kernels::IndexFault* fault_record(int index);
// Something other than a kernel failed on the device, such as a call between ranks that was given up: raised,
// once, by who next waits for the device, whose numbers may be wrong; unless it was raised elsewhere.
void report_failure(int index, const std::string& text);
void drop_failure(int index);
// Raises and clears what a finished kernel has reported, naming `op` if the kernel did not, or a failure.
void raise_fault(int index, const char* op);
// The same for whichever device has one, where the caller does not know which it waited for.
void raise_any_fault(const char* op);

}  // namespace warptape::cuda
