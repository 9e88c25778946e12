#!/usr/bin/env bash
# Builds warptape for one GPU, runs its cuda tests, a sanitizer's sample and the GPU benchmarks. Needs no network: a CUDA
# 13 toolkit, Python with NumPy, pytest, pybind11, CMake and ninja, the headers of cuBLAS, cuDNN and NCCL (the nvidia-*
# wheels that PyTorch brings will do), and those of the cuDNN frontend, which may lie in CUDNN_FRONTEND_INCLUDE. The CPU's
# part needs nothing else; tests run on several processes where pytest-xdist is there.
#
#   benchmarks/gpu.sh [FOLDER]     logs, gpu.json and gpu.md go to FOLDER (default: build/gpu-results)
#
# PARTS="build sanitize test bench compile" chooses. A call ends after LIMIT seconds (480): what it had no time for is
# named, and PARTS runs it in a second call, which finds the build. PYTHON is the interpreter; ARCHITECTURE (90a) what is
# compiled for; COMMIT what was built where there is no git.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-build/gpu-results}" && cd "${1:-build/gpu-results}" && pwd)
python=${PYTHON:-python3}
parts=${PARTS:-build sanitize test bench compile}
limit=${LIMIT:-480}
failed="" left=""
export CUDNN_FRONTEND_INCLUDE=${CUDNN_FRONTEND_INCLUDE:-$PWD/build/cudnn-frontend}
export PYTHONPATH=$PWD/python

# part NAME SECONDS COMMAND...: runs it under a limit of time, its output in FOLDER/NAME.log, and says how it ended.
part() {
  local name=$1 most=$2 start=$SECONDS
  shift 2
  ((most > limit - SECONDS)) && most=$((limit - SECONDS))
  if ((most < 20)); then
    left+=" $name"
    return 1
  fi
  timeout "$most" "$@" >"$out/$name.log" 2>&1
  local code=$?
  printf '%-14s %4d s  exit %d\n' "$name" $((SECONDS - start)) "$code"
  if [ $code -ne 0 ]; then
    failed+=" $name"
    tail -n "${TAIL:-15}" "$out/$name.log" | cut -c1-300
  fi
  return $code
}
wanted() { [[ " $parts " == *" $1 "* ]]; }
tests() {
  local name=$1 most=$2
  shift 2
  part "$name" "$most" "$python" -m pytest -q --timeout 60 $workers "$@"
}
workers=""
"$python" -c "import xdist" 2>/dev/null && workers="-n $(($(nproc) < 12 ? $(nproc) : 12))"

if wanted build; then
  part configure 60 cmake -S . -B build/gpu -G Ninja -DWARPTAPE_CUDA=ON -DWARPTAPE_INPLACE=ON \
    -DWARPTAPE_CUDA_ARCHITECTURES="${ARCHITECTURE:-90a}" \
    -DPython_EXECUTABLE="$(command -v "$python")" &&
    part build 440 cmake --build build/gpu
  [ -f python/warptape/libwarptape_cuda.so ] || exit 1
  part doctor 60 "$python" -m warptape.doctor
  # With it cuDNN makes plans for this GPU on machines without one: tools/cudnn_plans.py plans.
  part properties 120 "$python" tools/cudnn_plans.py properties "$out/cudnn_properties.json"
fi
if wanted sanitize; then
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  for tool in memcheck racecheck; do
    part $tool 60 "$sanitizer" --tool $tool --report-api-errors no --error-exitcode 3 --target-processes all \
      "$python" benchmarks/_sanitizer_sample.py
  done
fi
if wanted test; then
  tests cuda 150 tests/python/cuda -m cuda
  part nccl 100 "$python" -m pytest tests/distributed/test_nccl.py -q --timeout 90
  tests op_table 150 tests/op_table --device cuda
fi
if wanted bench; then
  part bench 420 "$python" benchmarks/gpu.py --out "$out/gpu.json" --commit "${COMMIT:-}"
  cat "$out/bench.log"
fi
if wanted compile; then
  # NVRTC comes with PyTorch's wheels, of which the build has used cuBLAS.
  export WARPTAPE_CACHE="$out/kernels"
  tests compile 150 tests/graph/test_cuda.py
  tests compiled_ops 150 tests/graph/test_op_table.py --device cuda --samples 1
  tests captured 150 tests/graph/test_captured.py --device cuda --samples 1
  part bench_compile 120 "$python" benchmarks/gpu.py --rows compiled --no-losses --out "$out/compile.json" \
    --commit "${COMMIT:-}"
  cat "$out/bench_compile.log"
fi
tar -czf "$out/logs.tar.gz" -C "$out" --exclude=logs.tar.gz --exclude=kernels .
[ -n "$left" ] && echo "no time was left for:$left"
if [ -n "$failed" ]; then
  echo "failed:$failed"
  exit 1
fi
[ -z "$left" ] && echo "all parts passed"
