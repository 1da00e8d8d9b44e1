# One GPU, at most 330 s. From the bundle's folder: bash jobs/run.sh   (DEVICE, MODEL1, MODEL8, OUT: see README)
[ -n "$BASH_VERSION" ] || exec bash "$0"
export LD_LIBRARY_PATH=$PWD/lib:/usr/local/cuda/lib64:/usr/local/cuda/targets/x86_64-linux/lib:$LD_LIBRARY_PATH
OUT=${OUT:-out}; mkdir -p $OUT; T0=$SECONDS
DEVICE=${DEVICE:-cuda} MODEL1=${MODEL1:-configs/models/llama-1b} MODEL8=${MODEL8:-configs/models/llama-8b}
t() { local s=$1 n=$2; shift 2; timeout -k 5 $s "$@" >$OUT/$n.txt 2>&1; echo "$n rc=$? $((SECONDS - T0))s $(grep -E '^\[  (PASSED|FAILED)' $OUT/$n.txt | head -2 | tr '\n' ' ')"; grep -E '^\[  FAILED' $OUT/$n.txt | sort -u | head -6; }
echo "== 1. right? (beside each other)"
[ $DEVICE = host ] || t 100 ops bin/gpu_ops_test '--gtest_filter=*PrepareInputs*:*Sample*-*DrawsFollow*' &
[ $DEVICE = host ] || t 100 device bin/gpu_device_test &
(export REFRAIN_TEST_DEVICE=$DEVICE; t 150 in_flight bin/runner_test '--gtest_filter=*InFlight*:Steps*:Sampling*' --gtest_repeat=5; t 150 runner bin/runner_test) &
wait
python3 - $OUT/in.jsonl ${VOCAB:-128000} <<'PY'
import json, random, sys
r, vocab = random.Random(5), int(sys.argv[2])
with open(sys.argv[1], "w") as f:
    for i in range(48):
        line = {"prompt_ids": [r.randrange(3, vocab) for _ in range(r.choice([3, 9, 40, 150]))], "max_tokens": r.choice([8, 24, 40]),
                "ignore_eos": True, "temperature": [0, 0, 0.8][i % 3], "seed": i}
        if i % 4 == 1: line["logprobs"] = 3
        if i % 5 == 2: line["frequency_penalty"] = 0.7
        if i % 7 == 3: line["allowed_token_ids"] = [11 + i, 200 + i, 201 + i]
        f.write(json.dumps(line) + "\n")
PY
G="--model $MODEL1 --load-format dummy --device $DEVICE --dtype float32 --max-model-len ${LEN:-512} --prompts $OUT/in.jsonl --gpu-memory-utilization 0.5"
g() { timeout -k 5 60 bin/refrain generate $G --cudagraph-mode $2 --max-num-seqs $3 --output $OUT/$1.jsonl >$OUT/$1.txt 2>&1; echo "generate $1 rc=$? $((SECONDS - T0))s"; }
g full FULL_AND_PIECEWISE 32; g again FULL_AND_PIECEWISE 32; g none NONE 32; g alone FULL_AND_PIECEWISE 1
python3 - $OUT <<'PY'
import json, sys
read = lambda n: [json.loads(l)["output_ids"] for l in open(f"{sys.argv[1]}/{n}.jsonl")]
full = read("full")
for n in ["again", "none", "alone"]:
    other = read(n)
    print(f"   tokens of FULL, 32 requests, and {n}: {sum(a == b for a, b in zip(full, other))} of {len(full)} answers equal")
PY
echo "== 2. how long idle (events; before: 1B 23.4 and 22.3 us, 8B 25.9 and 26.1 at b = 1 and 32)"
B="--load-format dummy --device $DEVICE --max-model-len ${BENCH_LEN:-2048}"
D="--prompt-len ${PROMPT:-128} --first-tokens ${FIRST:-64} --last-tokens ${LAST:-320}"
for m in 1b:$MODEL1 8b:$MODEL8; do for b in 1 32; do
  timeout -k 5 40 bin/refrain bench decode $B $D --runs 1 --max-num-seqs 32 --batch $b --time-steps --log-level info --model ${m#*:} >$OUT/idle-${m%%:*}-$b.txt 2>&1
  echo "   ${m%%:*} b=$b rc=$? $(grep -o 'idle between decode steps.*' $OUT/idle-${m%%:*}-$b.txt | tail -1)"
done; done
echo "== 3. ms a step (before: 1B 0.812 1.304 1.864, 8B 3.821 5.354 7.178 at b = 1 32 128)"
for m in 1b:$MODEL1 8b:$MODEL8; do
  timeout -k 5 70 bin/refrain bench decode $B $D --runs 3 --max-num-seqs ${SEQS:-128} --batch ${BATCH:-1,32,128} --model ${m#*:} >$OUT/decode-${m%%:*}.txt 2>&1
  echo "   ${m%%:*} rc=$? $((SECONDS - T0))s"; grep -vE 'info|^$|progress' $OUT/decode-${m%%:*}.txt | cut -c1-150 | tail -5
done
echo "== 4. step through the runner, its graph alone, prepare_inputs and sample alone (before: 1B 805 and 792 us, 8B 3817 and 3803)"
for m in 1b:$MODEL1 8b:$MODEL8; do
  REFRAIN_TEST_DEVICE=$DEVICE timeout -k 5 40 bin/step_bench ${m#*:} ${CONTEXT:-320} 1 32 >$OUT/step-${m%%:*}.txt 2>&1
  echo "   ${m%%:*} rc=$?"; grep -E '^batch|prepare_inputs|^  sample' $OUT/step-${m%%:*}.txt | cut -c1-140
done
echo "== end $((SECONDS - T0))s"
