#!/usr/bin/env bash
# Proves and measures warptape on a machine with an NVIDIA GPU, in eight minutes, from wheels: nothing is built and nothing
# is fetched. Kernels run in order of risk, each family in a process of its own, and every result is written as it comes.
#
#   benchmarks/gpu_day.sh [FOLDER]     the first call: ladder, sanitizer, tests, benchmarks
#   PARTS="gradients compiled large nccl profile" benchmarks/gpu_day.sh [FOLDER]     a second call, for what takes longer
#
# FOLDER (default: build/gpu-day) gets six files: env.txt, ladder.jsonl, tests.jsonl, bench.jsonl, cudnn_properties.json
# and logs.tar.gz. WHEELS (default: .whl) has the wheels of warptape and warptape-cuda, as tools/build_wheel.py --cuda makes
# them, and of scipy-openblas32; in its folder cudnn-frontend lie the headers of nvidia-cudnn-frontend, and beside them
# libgemm_ladder.so, made by examples/gemm_ladder/gemm_ladder.py --arch 90a: without it its steps are skipped. The Python that runs
# (PYTHON, default: python3) has NumPy, SciPy, safetensors, pytest, pytest-xdist and NVIDIA's libraries, such as PyTorch
# brings, and PyTorch for the comparison. LIMIT (480) is the seconds of a call; COMMIT is what was built. STEPS are those of
# the ladder that are wanted. SCALE (1) multiplies all limits of time: a rehearsal with the emulated plugin takes longer.
# ONLY is for a rehearsal in small: tests whose names match (pytest's -k), and benchmarks of tiny sizes.
# Each part has a share of LIMIT that those before it leave, and may take more where they were faster.
# Exit code 1 if anything failed: the last lines name it.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-build/gpu-day}" && cd "${1:-build/gpu-day}" && pwd)
python=${PYTHON:-python3} wheels=${WHEELS:-.whl} scale=${SCALE:-1}
limit=$((${LIMIT:-480} * scale))
parts=${PARTS:-ladder sanitize tests attention ops bench}
work=$(mktemp -d)
logs=$work/logs
mkdir "$logs"
failed="" left=""

# Whatever ends this script, what is known so far is in FOLDER.
finish() {
  tar -czf "$out/logs.tar.gz" -C "$logs" . 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT

# The seconds that a part finds left, however long those before it took: at most 460 for the parts of a call.
declare -A share=([ladder]=125 [sanitize]=45 [tests]=75 [attention]=60 [ops]=55 [bench]=100
  [gradients]=120 [compiled]=60 [large]=70 [profile]=100 [nccl]=60)
wanted=0 later=0 # the shares of all parts, and of those that have not begun
for name in $parts; do ((wanted += ${share[$name]:?no such part} * scale)); done
if ((wanted + 20 * scale > limit)); then
  echo "LIMIT: these parts need $((wanted / scale + 20)) s; name fewer of them in PARTS" >&2
  exit 2
fi

# begin NAME: whether the part is wanted; then its share is no longer kept for later.
begin() {
  [[ " $parts " == *" $1 "* ]] || return 1
  ((later -= ${share[$1]} * scale))
  return 0
}
# part NAME SECONDS COMMAND...: runs it under a limit of time, its output in a log, and says how it ended.
part() {
  local name=$1 most=$(($2 * scale)) start=$SECONDS code left_over
  shift 2
  left_over=$((limit - SECONDS - later - 8))
  ((most > left_over)) && most=$left_over
  if ((most < 10)); then
    left+=" $name"
    return 1
  fi
  timeout --kill-after 5 "$most" "$@" >"$logs/$name.log" 2>&1
  code=$?
  printf '%-16s %4d s  exit %d%s\n' "$name" $((SECONDS - start)) $code "$( ((code == 124 || code == 137)) && echo ', out of time')"
  if ((code != 0)); then
    failed+=" $name"
    tail -n 12 "$logs/$name.log" | cut -c1-240
  fi
  return $code
}

part install 60 "$python" -m pip install -q --no-index --no-deps --no-compile --target "$work/site" "$wheels"/*.whl || exit 1
export PYTHONPATH=$work/site PYTHONUNBUFFERED=1 WARPTAPE_CACHE=$work/cache
export CUDNN_FRONTEND_INCLUDE=${CUDNN_FRONTEND_INCLUDE:-$wheels/cudnn-frontend}
ladder=$(realpath "$wheels")/libgemm_ladder.so
[ -f "$ladder" ] && export GEMM_LADDER=${GEMM_LADDER:-$ladder}
# nvidia/*/lib of the wheels, wherever they are installed.
WARPTAPE_CUDA_LIBRARIES=${WARPTAPE_CUDA_LIBRARIES:-$("$python" -c '
import glob, importlib.util
spec = importlib.util.find_spec("nvidia")
print(":".join(sorted(f for at in (spec.submodule_search_locations if spec else ()) for f in glob.glob(f"{at}/*/lib"))))')}
export WARPTAPE_CUDA_LIBRARIES
describe() {
  date -u
  echo "commit ${COMMIT:-unknown}"
  timeout 15 nvidia-smi
  timeout 15 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
  timeout 30 "$python" -m warptape.doctor
  "$python" -m pip list 2>/dev/null | grep -iE '^(nvidia|torch|triton|numpy|pytest|warptape)'
}
describe >"$out/env.txt" 2>&1
if ! part first 60 "$python" -X faulthandler -c 'import warptape; warptape.zeros(1).cuda()'; then
  echo "no tensor can be put on the GPU"
  exit 1
fi
later=$wanted # not before: without what came until here nothing runs, so it may take from the parts

# tests NAME SECONDS WORKERS ARGUMENTS...: each test's outcome is a line of tests.jsonl.
tests() {
  local name=$1 most=$2 workers=$3
  shift 3
  part "$name" "$most" "$python" -m pytest -q -n "$workers" --results "$out/tests.jsonl" --test-limit $((30 * scale)) \
    -o timeout=0 -m "not parity" ${ONLY:+-k "$ONLY"} "$@"
}

if begin ladder; then
  part ladder 110 "$python" benchmarks/gpu_ladder.py --out "$out/ladder.jsonl" \
    --limit $((15 * scale)) --budget $((100 * scale)) ${STEPS:+--steps "$STEPS"}
  # With them cuDNN makes plans for this GPU on machines without one: tools/cudnn_plans.py plans.
  part properties 60 "$python" tools/cudnn_plans.py properties "$out/cudnn_properties.json"
fi
if begin sanitize; then
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  watch() {
    part "$1" "$2" "$sanitizer" --tool "$1" --report-api-errors no --error-exitcode 3 --target-processes all "${@:3}"
  }
  for tool in memcheck racecheck synccheck; do
    watch $tool 15 "$python" benchmarks/_sanitizer_sample.py
  done
fi
if begin tests; then
  tests cuda 120 8 tests/python/cuda --ignore tests/python/cuda/test_large.py
fi
if begin attention; then
  for kernels in cudnn mma own plain; do
    WARPTAPE_ATTENTION=$kernels tests attention_$kernels 15 8 tests/python/cuda/test_cuda_attention.py
  done
fi
if begin ops; then
  tests op_values 90 12 tests/op_table/test_values.py --device cuda --samples 1
fi
if begin bench; then
  part bench 130 "$python" benchmarks/gpu.py --lines "$out/bench.jsonl" --out "$logs/gpu.json" --commit "${COMMIT:-}" \
    --rounds 1 --limit $((48 * scale)) --rows elementwise,layer_norm,rms_norm,softmax,cross_entropy,adamw,gemm,gemm_ladder,attention,gpt2 \
    --peer-rows gemm,attention,gpt2 ${ONLY:+--quick}
  cat "$logs/bench.log"
fi
# For a second call.
if begin gradients; then
  tests op_gradients 200 12 tests/op_table --device cuda --samples 1 --deselect tests/op_table/test_values.py
fi
if begin compiled; then
  tests compiled 90 8 tests/graph/test_cuda.py tests/graph/test_captured.py --device cuda --samples 1
fi
if begin large; then
  tests large 90 1 tests/python/cuda/test_large.py
fi
if begin profile; then
  for step in attention_own gemm_wgmma rows paged elementwise; do
    part "profile_$step" 20 ncu --clock-control none --launch-count 20 --csv --metrics \
      gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed \
      "$python" benchmarks/gpu_ladder.py --step $step
  done
fi
if begin nccl; then
  part nccl 60 "$python" -m pytest -q tests/distributed/test_nccl.py --results "$out/tests.jsonl" -o timeout=$((50 * scale))
fi

"$python" benchmarks/gpu_report.py "$out"
[ -n "$left" ] && echo "no time was left for:$left"
if [ -n "$failed" ]; then
  echo "failed:$failed"
  exit 1
fi
[ -z "$left" ] && echo "all parts passed"
