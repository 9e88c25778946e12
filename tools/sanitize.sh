#!/usr/bin/env bash
# Builds warptape with sanitizers into a virtual environment of its own and runs the tests there.
# Usage: tools/sanitize.sh [address,undefined | thread | threads] [pytest arguments]
# threads: ThreadSanitizer over what several threads call at once, compiled functions and the C API, in some minutes.
# Without arguments of its own the suite goes without tests/examples and tests/benchmarks: whole trainings and timings,
# of the same ops, that instrumented code takes hours for.
set -euo pipefail
cd "$(dirname "$0")/.."
kinds=${1:-address,undefined}
shift || true
if [ "$kinds" = threads ]; then
  kinds=thread
  [ $# -gt 0 ] || set -- tests/graph/test_threads.py tests/python/autograd/test_threads.py tests/graph/test_capi.py tests/python/inference/test_engine_threads.py
fi
env=build/sanitize-${kinds//,/-}
python3 -m venv "$env"
CMAKE_ARGS="-DWARPTAPE_SANITIZE=$kinds -DWARPTAPE_CPU_ISAS=${WARPTAPE_CPU_ISAS:-avx2}" \
  "$env/bin/pip" install -q -C build-dir="$env/cmake" '.[tests]' pytest-xdist

# Python itself is not instrumented, so the run-time libraries must be there before it starts. Leaks are not looked for:
# the interpreter frees little at exit. A refused allocation is an error of ours to raise, not theirs to abort on; beside
# their shadow memory no limit on the address space can stand, so that on one allocation keeps huge sizes from being filled.
preload=""
case $kinds in *address*) preload+=" $(gcc -print-file-name=libasan.so)" ;; esac
case $kinds in *undefined*) preload+=" $(gcc -print-file-name=libubsan.so)" ;; esac
case $kinds in *thread*) preload+=" $(gcc -print-file-name=libtsan.so)" ;; esac
refuse=allocator_may_return_null=1:max_allocation_size_mb=3072
export ASAN_OPTIONS=$refuse:detect_leaks=0:abort_on_error=1
export TSAN_OPTIONS=$refuse:halt_on_error=1:suppressions=$PWD/tools/tsan.supp
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export WARPTAPE_SANITIZED=1  # tests: longer limits of time
# By file, for the mutated calls of a file share their results. Two workers: each may take several GB.
if [ $# -eq 0 ]; then
  set -- tests --ignore=tests/examples --ignore=tests/benchmarks -n 2 --dist loadfile
fi
LD_PRELOAD="${preload# } $(gcc -print-file-name=libstdc++.so)" PYTHONMALLOC=malloc \
  "$env/bin/python" -m pytest --timeout 1800 "$@"
