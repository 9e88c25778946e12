#!/usr/bin/env bash
# Builds warptape with sanitizers into a virtual environment of its own and runs the tests there.
# Usage: tools/sanitize.sh [address,undefined | thread] [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
kinds=${1:-address,undefined}
shift || true
env=build/sanitize-${kinds//,/-}
python3 -m venv "$env"
CMAKE_ARGS="-DWARPTAPE_SANITIZE=$kinds -DWARPTAPE_CPU_ISAS=${WARPTAPE_CPU_ISAS:-avx2}" \
  "$env/bin/pip" install -q -C build-dir="$env/cmake" '.[tests]'

# Python itself is not instrumented, so the run-time libraries must be there before it starts. Leaks are not looked for:
# the interpreter frees little at exit. A refused allocation is an error of ours to raise, not theirs to abort on.
preload=""
case $kinds in *address*) preload+=" $(gcc -print-file-name=libasan.so)" ;; esac
case $kinds in *undefined*) preload+=" $(gcc -print-file-name=libubsan.so)" ;; esac
case $kinds in *thread*) preload+=" $(gcc -print-file-name=libtsan.so)" ;; esac
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
if [ $# -eq 0 ]; then set -- tests; fi
LD_PRELOAD="${preload# } $(gcc -print-file-name=libstdc++.so)" PYTHONMALLOC=malloc \
  "$env/bin/python" -m pytest --timeout 1800 "$@"
