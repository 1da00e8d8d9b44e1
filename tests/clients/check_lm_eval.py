"""lm-eval on a task of our own (capitals), and the same computed from the server's log-probabilities. By tools/lm_eval."""
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "process"))
from conftest import ROOT, SMOLLM2, nothing_left_behind, start_server  # noqa: E402, F401

TASK = HERE / "capitals/capitals.jsonl"
DOCUMENTS = [json.loads(line) for line in TASK.read_text().splitlines()]


def log_likelihood(client, context, answer):
    """The sum over the answer's tokens, by echo and logprobs."""
    told = client.completions.create(model=SMOLLM2.name, prompt=context + answer, echo=True, logprobs=0, max_tokens=0)
    said = told.choices[0].logprobs
    return sum(value for value, place in zip(said.token_logprobs, said.text_offset) if place >= len(context))


def test_lm_eval_finds_what_the_log_probabilities_say(start_server, tmp_path):  # noqa: F811
    server = start_server("--max-model-len", 512, tp=1)
    tasks, results = tmp_path / "tasks", tmp_path / "results"
    tasks.mkdir()
    (tasks / "capitals.yaml").write_text((HERE / "capitals/capitals.yaml").read_text().replace("CAPITALS_JSONL", str(TASK)))
    arguments = (f"model={SMOLLM2.name},base_url={server.base}/v1/completions,tokenizer={SMOLLM2},"
                 "tokenizer_backend=huggingface,num_concurrent=4")
    program = ROOT / "build/clients/lm-eval/bin/lm_eval"
    done = subprocess.run([program, "--model", "local-completions", "--model_args", arguments, "--tasks", "capitals", "--include_path",
                           tasks, "--batch_size", "4", "--output_path", results, "--log_samples"], capture_output=True, text=True,
                          timeout=600, env={**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(next(results.rglob("results_*.json")).read_text())["results"]["capitals"]
    samples = [json.loads(line) for line in next(results.rglob("samples_*.jsonl")).read_text().splitlines()]
    client, right, worst = server.client(), 0, 0.0
    for sample in samples:
        document = sample["doc"]
        ours = [log_likelihood(client, f"The capital of {document['country']} is", " " + city) for city in document["cities"]]
        theirs = [float(answer[0][0]) for answer in sample["resps"]]
        worst = max([worst, *(abs(a - b) for a, b in zip(ours, theirs, strict=True))])
        right += ours.index(max(ours)) == document["capital"]
    print(f"{len(samples)} questions: lm-eval acc {told['acc,none']:.4f}, from log-probabilities {right / len(samples):.4f}, "
          f"acc_norm {told['acc_norm,none']:.4f}; log-likelihoods differ by {worst:.6f} at most")
    assert len(samples) == len(DOCUMENTS) and told["acc,none"] == right / len(samples) and worst < 1e-3
    assert told["acc,none"] > 0.5
