#!/usr/bin/env bash
# Everything that needs a GPU, in under ten minutes: validation, recorded vectors, compute-sanitizer, speed.
# Usage: benchmarks/gpu/full.sh OUT [CAPTURE]
#   OUT      folder for validate.json, vectors.tar, sanitizer.log, bench.json, bench.svg, bench-l2.json
#   CAPTURE  file from `santa-hw capture`, to validate on a real model's operands too
# PYTHON names the interpreter. What fails is told at the end; the rest still runs.
set -uo pipefail
out=$(realpath -m "${1:?usage: benchmarks/gpu/full.sh OUT [CAPTURE]}")
captured=${2:+$(realpath "$2")}
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
santa=("$python" -m santa_hw)
mkdir -p "$out"
failed=()

step() {
  local name=$1
  shift
  printf '\n== %s (after %d s)\n' "$name" "$SECONDS"
  "$@" || failed+=("$name")
}

sanitize() {
  if ! command -v compute-sanitizer > /dev/null; then
    echo "compute-sanitizer is not installed: not run"
    return
  fi
  echo memcheck
  compute-sanitizer --tool memcheck --error-exitcode 1 "$python" benchmarks/gpu/sanitize.py || return
  echo racecheck
  export SANTA_HW_NVCC_FLAGS=-DSANTA_RACECHECK
  "${santa[@]}" gpu build &&
    compute-sanitizer --tool racecheck --error-exitcode 1 "$python" benchmarks/gpu/sanitize.py
}

examples() {
  "$python" - << 'PYTHON'
import re
from pathlib import Path

names = {}
for body in re.findall(r"```python\n(.*?)```", Path("docs/reference/gpu.md").read_text(), re.DOTALL):
    exec(body, names)
print("they run")
PYTHON
}

step build "${santa[@]}" gpu build
# The sanitizer needs little of the GPU, and nothing is timed meanwhile.
sanitize > "$out/sanitizer.log" 2>&1 &
sanitizer=$!
step validate "${santa[@]}" gpu validate --json "$out/validate.json" --record "$out/vectors" \
  ${captured:+--captured "$captured"}
tar -C "$out" -cf "$out/vectors.tar" vectors && rm -r "$out/vectors"
step sanitizer wait "$sanitizer"
tail -n 3 "$out/sanitizer.log"
step "examples of the docs" examples
step bench "${santa[@]}" gpu bench --json "$out/bench.json" --plot "$out/bench.svg"
step "bench, persisting L2" "${santa[@]}" gpu bench --persist-l2 12 --shapes 1x4k,1x32k,1x128k,4x32k,16x32k,16x128k \
  --methods cudnn,torch-flash,flashinfer,flash-attention,sys,sys-recent,fixed,fixed-recent --json "$out/bench-l2.json"

printf '\n== done (after %d s)\n' "$SECONDS"
if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
