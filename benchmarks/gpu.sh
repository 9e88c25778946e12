#!/usr/bin/env bash
# Builds warptape for one GPU, runs its cuda tests, a sanitizer's sample and the GPU benchmarks, in less than ten minutes
# on 16 cores. Needs no network: a CUDA 13 toolkit, Python with NumPy, pytest, pybind11, CMake and ninja, the headers of
# cuBLAS, cuDNN and NCCL (the nvidia-* wheels that PyTorch brings will do), and those of the cuDNN frontend, which may lie in
# CUDNN_FRONTEND_INCLUDE. The CPU's part uses its built-in GEMM where oneDNN is absent.
#
#   benchmarks/gpu.sh [FOLDER]     logs, gpu.json and gpu.md go to FOLDER (default: build/gpu-results)
#
# PARTS="build test sanitize bench" chooses, and "compile" (torch.compile's tests and benchmark alone, for a second call); PYTHON is the interpreter; ARCHITECTURE (90a) what is compiled for.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-build/gpu-results}" && cd "${1:-build/gpu-results}" && pwd)
python=${PYTHON:-python3}
parts=${PARTS:-build test sanitize bench}
failed=""
export CUDNN_FRONTEND_INCLUDE=${CUDNN_FRONTEND_INCLUDE:-$PWD/build/cudnn-frontend}
export PYTHONPATH=$PWD/python

# part NAME SECONDS COMMAND...: runs it under a limit of time, its output in FOLDER/NAME.log, and says how it ended.
part() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  local code=$?
  printf '%-10s %4d s  exit %d\n' "$name" $((SECONDS - start)) "$code"
  if [ $code -ne 0 ]; then
    failed+=" $name"
    tail -n "${TAIL:-15}" "$out/$name.log" | cut -c1-300
  fi
  return $code
}
wanted() { [[ " $parts " == *" $1 "* ]]; }

if wanted build; then
  part configure 60 cmake -S . -B build/gpu -G Ninja -DWARPTAPE_CUDA=ON -DWARPTAPE_INPLACE=ON \
    -DWARPTAPE_CUDA_ARCHITECTURES="${ARCHITECTURE:-90a}" \
    -DPython_EXECUTABLE="$(command -v "$python")" &&
    part build 420 cmake --build build/gpu || exit 1
fi
if wanted test; then
  part doctor 60 "$python" -m warptape.doctor
  part tests 150 "$python" -m pytest tests/python/cuda -q -m cuda --timeout 60
  part nccl 100 "$python" -m pytest tests/distributed/test_nccl.py -q --timeout 90
  part op_table 150 "$python" -m pytest tests/op_table -q --device cuda --timeout 60
fi
if wanted compile; then
  # NVRTC comes with PyTorch's wheels, of which the build has used cuBLAS.
  export WARPTAPE_CACHE="$out/kernels"
  part compile 150 "$python" -m pytest tests/graph/test_cuda.py -q --timeout 60
  part compiled_ops 150 "$python" -m pytest tests/graph/test_op_table.py -q --device cuda --samples 1 --timeout 60
  part captured 150 "$python" -m pytest tests/graph/test_captured.py -q --device cuda --samples 1 --timeout 60
  part bench_compile 120 "$python" benchmarks/gpu.py --rows compiled --no-losses --out "$out/compile.json" \
    --commit "${COMMIT:-}"
  cat "$out/bench_compile.log"
fi
if wanted sanitize; then
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  for tool in memcheck racecheck; do
    part $tool 60 "$sanitizer" --tool $tool --error-exitcode 3 --target-processes all \
      "$python" benchmarks/_sanitizer_sample.py
  done
fi
if wanted bench; then
  part bench 200 "$python" benchmarks/gpu.py --out "$out/gpu.json" --commit "${COMMIT:-}"
  cat "$out/bench.log"
fi
if [ -n "$failed" ]; then
  echo "failed:$failed"
  exit 1
fi
echo "all parts passed"
