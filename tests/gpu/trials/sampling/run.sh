#!/usr/bin/env bash
# Ends within 120 s on one H200. Runs from the unpacked bundle folder (bundle/ beside this file, or its content here).
set -u
cd "$(dirname "$0")"; [ -x ./run ] || cd bundle
step() { local s=$1; shift; echo "== $*"; timeout "$s" "$@"; echo "-- exit $?"; }
short() { grep -E '^\[ +(FAILED|PASSED|SKIPPED)|Failure|Expected|vocabulary|error' | head -25; }
step 10 ./run sample_select_test --gtest_brief=1 | tail -4
step 40 ./run gpu_ops_test '--gtest_filter=*Sample*' 2>&1 | short
echo "== 512 threads a block, two blocks a multiprocessor (as committed)"
timeout 25 ./run kernels_cuda_bench --cases sample --pool-gib 1 | cut -c1-80
echo "== 256 threads, three blocks"
timeout 25 ./run kernels_cuda_bench_256 --cases sample --pool-gib 1 | cut -c1-80
cs=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -x "$cs" ]; then  # in the time that is left
  export LD_LIBRARY_PATH=$PWD/lib:${LD_LIBRARY_PATH:-}
  for tool in memcheck synccheck; do
    step 9 "$cs" --tool $tool bin/gpu_ops_test '--gtest_filter=*LogprobsListTheBest*:*Penalties*:*MaskAndBias*' 2>&1 | grep -E "ERROR SUMMARY|Invalid|Barrier|exit|FAILED|PASSED" | head -6
  done
fi
