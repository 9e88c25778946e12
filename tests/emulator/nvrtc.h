// The stand-in for NVRTC: see nvrtc.cpp.
#pragma once

namespace emulator {

// The function of that name; null where WARPTAPE_EMULATED_NVRTC says that there is no NVRTC.
void* nvrtc_symbol(const char* name);

}  // namespace emulator
