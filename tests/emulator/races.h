// Finds two threads of a kernel that touch the same memory, one of them writing, with nothing that orders
// them. See Note [Races].
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

// What orders accesses: a launch begins, a block begins or passed a barrier, a warp passed a collective.
void races_begin_launch();
void races_end_launch();
void races_begin_block(uint64_t block);
void races_resume_block(uint64_t block);  // another of its cluster ran between
void races_pass_barrier();
void races_pass_warp(unsigned warp);
// The running thread touched memory; called for what is not compiled with instrumentation, too.
void races_access(const void* p, size_t bytes, bool write);
// The running thread waits, or returns from a function.
void races_leave();
// It did so atomically, which orders its block's accesses before it and after it among blocks that do the
// same.
void races_atomic(const void* p, size_t bytes);

}  // namespace emulator
