#!/usr/bin/env bash
# Ends within 5 minutes on one H200. From the unpacked bundle folder: bash run.sh   (whole outputs: out/)
# 1 tests of the new prefill path  2 table old path / new path  3 time to the first token of 8B, made-up weights.
# bin/*.gather are the same programs of the commit before (FlashInfer's own copies by cp.async instead of TMA).
set -uo pipefail
cd "$(dirname "$0")"
OUT=${OUT:-out}
mkdir -p "$OUT"
here=$PWD
export LD_LIBRARY_PATH=$here/lib:${REFRAIN_CUDA_LIBS:-}:/usr/local/cuda/lib64:/usr/local/cuda/targets/x86_64-linux/lib:${LD_LIBRARY_PATH:-}

# limited SECONDS COMMAND...: at most so long, and no longer than the five minutes last.
limited() {
  local most=$1 left=$((290 - SECONDS))
  shift
  timeout $((left < 1 ? 1 : left < most ? left : most)) "$@"
}

tests() { # NAME PROGRAM FILTER
  limited 70 "bin/$2" --gtest_filter="$3" >"$OUT/$1.txt" 2>&1
  local status=$?
  echo "$1: exit $status ($([ $status = 124 ] && echo HANGS || grep -E '^\[  (PASSED|FAILED) ' "$OUT/$1.txt" | head -1)), skipped $(grep -c '^\[  SKIPPED' "$OUT/$1.txt")"
  grep -E '^\[  FAILED  \]|: Failure$' "$OUT/$1.txt" | sort | uniq -c | head -8
}
echo "== tests"
tests prefill gpu_ops_test '*PrefillTest*'
tests attention gpu_ops_test '*AttentionTest*'
[ -x bin/gpu_ops_test.gather ] && tests prefill.gather gpu_ops_test.gather '*PrefillTest*'

echo "== TFLOP/s (us), median; plain: this project's mma.sync kernel"
bench() { # NAME PROGRAM
  limited 60 "bin/$2" --cases prefill --pool-gib 2 --json "$OUT/$1.json" >"$OUT/$1.txt" 2>&1 || { echo "$1: exit $?"; tail -3 "$OUT/$1.txt"; }
}
bench new kernels_cuda_bench
[ -x bin/kernels_cuda_bench.gather ] && bench gather kernels_cuda_bench.gather
python3 - "$OUT" <<'PY'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
def load(name):
    try:
        return {c["case"]: c for c in json.loads((out / f"{name}.json").read_text())["cases"]}
    except (OSError, ValueError):
        return {}
new, gather = load("new"), load("gather")
show = lambda c: f'{c["tflops"]:7.1f} ({c["us"]:8.1f})' if c else "        -        "
print(f'{"heads, batch":<40}{"plain":>18}{"gather":>18}{"TMA":>18}')
for name in [n for n in new if "plain" not in n]:
    plain = new.get(name.replace("prefill ", "prefill plain ", 1))
    print(f'{name.removeprefix("prefill "):<40}{show(plain):>18}{show(gather.get(name)):>18}{show(new[name]):>18}')
PY

echo "== 8B, made-up weights: time to the first token, ms"
for backend in cuda_plain cuda; do
  limited 60 bin/refrain bench prefill --model configs/models/llama-8b --load-format dummy --device cuda --max-model-len 8320 \
    --max-num-batched-tokens 8192 --max-num-seqs 16 --lengths 512,2048,8192 --runs 5 --attention-backend $backend --json \
    >"$OUT/ttft.$backend.json" 2>"$OUT/ttft.$backend.txt"
  echo "$backend: exit $? $(python3 - "$OUT/ttft.$backend.json" <<'PY'
import json, sys
try:
    print(*["%d tokens %.1f;" % (c["context"], c["ttft_ms"]) for c in json.load(open(sys.argv[1]))])
except ValueError:
    print("no result:", open(sys.argv[1].replace(".json", ".txt")).read().strip()[-300:])
PY
)"
done
