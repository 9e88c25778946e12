// For races.cpp, asynchronous.cpp and fibers.cpp: counts what accesses of memory move.
#pragma once

#include <cstddef>

namespace emulator {

void traffic_begin_launch();
void traffic_end_block();
void traffic_end_launch(const char* name);
// One thread's access by the instruction at `pc`.
void traffic_access(const void* pc, const void* p, size_t bytes, bool write);

}  // namespace emulator
