#!/usr/bin/env bash
# Ends within 120 s on two H200s (four: RANKS=4). Runs from the unpacked bundle folder (bundle/ beside this file, or its content here).
set -u
cd "$(dirname "$0")"; [ -x ./run ] || cd bundle
export NCCL_NVLS_ENABLE=0
ranks=${RANKS:-2}
short() { grep -E '^\[ +(OK|FAILED|PASSED)|Failure|Expected|Which|rank|differ' | head -30; }
echo "== gathers: bits, replays, a rank that stays away, a rank that dies"
timeout 60 ./run gpu_collectives_test "--gtest_filter=*Gather*/$((ranks == 4)):*ADeadRank*/$((ranks == 4)):*SumsAreMade*/$((ranks == 4))" 2>&1 | short
echo "== us of a gather, bytes a rank, ours and NCCL"
timeout 45 ./run collective_bench "$ranks" gather
