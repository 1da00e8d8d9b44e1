"""`refrain generate` and `refrain plan` as a person runs them."""
import json
import math
import signal
import subprocess

import pytest
from conftest import BIN, ROOT, SMOLLM2, TINY, command_line, descendants, within

TINY_MODEL = TINY / "qwen3"


def test_order_is_kept_and_every_kind_of_prompt_answers(generate):
    lines = [{"prompt_ids": [504, 3575, 282, 4649, 314], "temperature": 0, "max_tokens": 2},
             {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 3, "logprobs": 2},
             {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 4}]
    answers, _ = generate(lines, "--max-model-len", 512)
    assert [len(a["output_ids"]) for a in answers] == [2, 3, 4]
    assert answers[0]["prompt_ids"] == answers[1]["prompt_ids"]
    assert answers[0]["output_ids"] == answers[1]["output_ids"][:2]
    assert answers[1]["text"].startswith(" Paris") and answers[1]["finish_reason"] == "length"
    assert len(answers[1]["logprobs"]) == 3 and len(answers[1]["logprobs"][0]["top"]) == 2
    assert "logprobs" not in answers[0]


def test_penalties_bias_and_masks_reach_the_sampler(generate):
    lines = [{"prompt_ids": [5, 6, 7], "temperature": 0, "max_tokens": 6, "allowed_token_ids": [11, 12]},
             {"prompt_ids": [5, 6, 7], "temperature": 0, "max_tokens": 4, "logit_bias": {"33": 100}},
             {"prompt_ids": [5, 6, 7], "temperature": 0, "max_tokens": 12, "allowed_token_ids": [1, 2, 3, 4, 9, 10],
              "frequency_penalty": 2.0, "ignore_eos": True}]
    answers, _ = generate(lines, model=TINY_MODEL)
    assert set(answers[0]["output_ids"]) <= {11, 12} and len(answers[0]["output_ids"]) == 6
    assert answers[1]["output_ids"] == [33] * 4
    assert len(set(answers[2]["output_ids"])) > 1


def test_logprobs_may_be_the_models_logits(generate):
    line = {"prompt_ids": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "temperature": 0, "logprobs": 3, "repetition_penalty": 1.5}
    told = {mode: generate([line], "--max-model-len", 64, "--dtype", "float32", "--logprobs-mode", mode, model=TINY / "qwen3")[0][0]
            for mode in ("raw_logprobs", "raw_logits")}
    assert told["raw_logits"]["output_ids"] == told["raw_logprobs"]["output_ids"]
    for logits, logprobs in zip(*(told[mode]["logprobs"] for mode in ("raw_logits", "raw_logprobs"))):
        distance = logits["logprob"] - logprobs["logprob"]
        assert abs(distance) > 0.1
        for (token, logit), (same, logprob) in zip(logits["top"], logprobs["top"], strict=True):
            assert token == same and logit - logprob == pytest.approx(distance, abs=1e-4)


def test_logprobs_may_be_those_that_a_token_is_drawn_from(generate):
    drawn = {"prompt_ids": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "temperature": 0.7, "top_k": 5, "seed": 3, "logprobs": 8}
    lines = [drawn, drawn | {"temperature": 0, "top_k": -1}, drawn | {"top_k": 12, "top_p": 0.8, "repetition_penalty": 1.5},
             drawn | {"top_k": -1, "min_p": 0.3, "allowed_token_ids": [*range(5, 15)], "bad_words": ["a"]}]

    def told(mode, *words):
        return generate(lines, "--max-model-len", 64, "--dtype", "float32", "--logprobs-mode", mode, *words, model=TINY_MODEL)[0]

    logits, processed, logprobs = (told(mode) for mode in ("raw_logits", "processed_logits", "processed_logprobs"))
    for raw, logit, logprob in zip(logits, processed, logprobs, strict=True):
        assert raw["output_ids"] == logit["output_ids"] == logprob["output_ids"]
    for line, (temperature, kept) in enumerate([(0.7, 5), (1, 8)]):
        for raw, logit in zip(logits[line]["logprobs"], processed[line]["logprobs"], strict=True):
            assert logit["logprob"] == pytest.approx(raw["logprob"] / temperature, abs=1e-4)
            for (token, value), (same, original) in zip(logit["top"][:kept], raw["top"][:kept], strict=True):
                assert token == same and value == pytest.approx(original / temperature, abs=1e-4)
            assert [value for _, value in logit["top"][kept:]] == [-9999] * (8 - kept)
    for line in (0, 3):  # of no more than eight tokens: all are told
        for logit, logprob in zip(processed[line]["logprobs"], logprobs[line]["logprobs"], strict=True):
            total = sum(math.exp(value) for _, value in logit["top"])
            for (token, value), (same, other) in zip(logit["top"], logprob["top"], strict=True):
                assert token == same and other == pytest.approx(value - math.log(total) if value > -9999 else -9999, abs=1e-4)
    drafts = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2})
    others = told("processed_logprobs", "--tensor-parallel-size", 2, "--speculative-config", drafts)
    for one, other in zip(logprobs[:3], others, strict=False):
        assert one["output_ids"] == other["output_ids"]
        for a, b in zip(one["logprobs"], other["logprobs"], strict=True):
            assert a["logprob"] == pytest.approx(b["logprob"], abs=1e-4) and dict(a["top"]) == pytest.approx(dict(b["top"]), abs=1e-4)


def test_prompt_logprobs_and_bad_words_are_the_servers(generate):  # P-17
    line = {"prompt_ids": [5, 6, 7], "temperature": 0, "max_tokens": 2}
    body = {"prompt": "Hi there", "temperature": 0, "max_tokens": 2, "prompt_logprobs": 0}
    answers, _ = generate([line, line | {"prompt_logprobs": 2, "logprobs": 1}, {"custom_id": "a", "url": "/v1/completions",
                           "method": "POST", "body": body}], model=TINY_MODEL)
    plain, told, batch = answers
    assert "prompt_logprobs" not in plain and plain["output_ids"] == told["output_ids"]
    assert told["prompt_logprobs"][0] is None and [str(token) for token in (6, 7)] == [
        next(token for token in entry if token in ("6", "7")) for entry in told["prompt_logprobs"][1:]]
    assert [len(entry) for entry in batch["response"]["body"]["choices"][0]["prompt_logprobs"][1:]] == [1] * (
        batch["response"]["body"]["usage"]["prompt_tokens"] - 1)
    france = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
    (free, bound), _ = generate([france, france | {"bad_words": ["Paris"]}], "--max-model-len", 128)
    assert "Paris" in free["text"] and "Paris" not in bound["text"]


def test_min_tokens_mask_what_would_end_the_answer(generate):
    question = {"messages": [{"role": "user", "content": "Answer with one word: what is the capital of France?"}],
                "temperature": 0, "max_tokens": 40}
    lines = [question, {**question, "min_tokens": 24}, {**question, "min_tokens": 4, "stop_token_ids": [4649]},
             {**question, "ignore_eos": True, "max_tokens": 24}]
    (free, longer, stopped, unending), _ = generate(lines, "--max-model-len", 512)
    early, ids = len(free["output_ids"]), longer["output_ids"]
    eos = free["output_ids"][-1]
    assert free["finish_reason"] == "stop" and early < 24
    assert ids[:early - 1] == free["output_ids"][:-1], "the mask changed a token that does not end the answer"
    assert eos not in ids[:24] and len(ids) > 24
    assert 4649 in free["output_ids"][:4] and 4649 not in stopped["output_ids"][:4]
    assert eos in unending["output_ids"], "ignore_eos keeps it as an ordinary token"


def test_a_seed_repeats_and_another_differs(generate):
    line = {"prompt": "Once upon a time", "temperature": 1.0, "max_tokens": 16}
    lines = [{**line, "seed": 1}, {**line, "seed": 2}, {**line, "seed": 1}]
    answers, _ = generate(lines, "--max-model-len", 256)
    assert answers[0]["output_ids"] == answers[2]["output_ids"] != answers[1]["output_ids"]


@pytest.mark.parametrize("line, word", [
    ("{broken", "JSON"), ("[1]", "object"), ("{}", "prompt"), ('{"prompt": "a", "prompt_ids": [1]}', "exactly one"),
    ('{"prompt": "a", "temperature": "x"}', "temperature"), ('{"prompt_ids": [1, -2]}', "prompt_ids"),
    ('{"prompt": "a", "max_tokens": 0}', "max_tokens"), ('{"prompt": "a", "n": 1, "logprobs": 50}', "logprobs"),
    ('{"prompt": "a", "n": 2}', "n must be 1"), ('{"prompt_ids": []}', "prompt"), ('{"prompt_ids": [999999]}', "999999"),
])
def test_a_bad_line_is_one_error_and_the_others_are_answered(generate, line, word):
    good = {"prompt_ids": [1, 2], "max_tokens": 1, "temperature": 0}
    answers, done = generate([good, line, good], model=TINY_MODEL, check=False)
    assert done.returncode == 64 and ":2:" in done.stderr and word in done.stderr, done.stderr
    assert len(answers) == 3 and answers[0] == answers[2] and len(answers[0]["output_ids"]) == 1
    assert set(answers[1]) == {"error"} and word in answers[1]["error"]["message"]


def test_each_of_several_bad_lines_is_said_and_no_worker_starts_for_them_alone(generate):
    answers, done = generate(["[1]", "{}"], "--log-level", "info", model=TINY_MODEL, check=False)
    assert done.returncode == 64 and ":1:" in done.stderr and ":2:" in done.stderr and "[worker" not in done.stderr
    assert [list(answer) for answer in answers] == [["error"], ["error"]]


def test_a_batch_file_of_openai_is_answered_in_its_form(generate):
    chat = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
    text = {"model": "any", "prompt": "a", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    lines = [{"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": chat},
             {"custom_id": "two", "method": "POST", "url": "/v1/completions", "body": text},
             {"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": {**text, "max_tokens": 0}},
             {"custom_id": "other", "method": "POST", "url": "/v1/embeddings", "body": {"input": "a"}},
             {"custom_id": "own", "prompt_ids": [1], "max_tokens": 1}]
    (one, two, bad, other, own), done = generate(lines, model=TINY_MODEL, check=False)
    assert done.returncode == 64 and [a["custom_id"] for a in (one, two, bad, other, own)] == [
        "one", "two", "bad", "other", "own"]
    assert one["response"]["status_code"] == two["response"]["status_code"] == 200 and one["error"] is None
    assert one["response"]["body"]["object"] == "chat.completion"
    assert one["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert two["response"]["body"]["usage"]["completion_tokens"] == 2
    assert bad["response"]["status_code"] == 400 and bad["response"]["body"]["error"]["param"] == "max_tokens"
    assert other["response"]["status_code"] == 400 and "url" in other["response"]["body"]["error"]["message"]
    assert len(own["output_ids"]) == 1


def test_tokens_and_temperature_beside_a_prompt(generate):
    def words(*options):
        done = subprocess.run([str(BIN / "refrain"), "generate", "--model", str(TINY_MODEL), "--prompt", "a", *options],
                              capture_output=True, text=True, timeout=within(60))
        assert done.returncode == 0, done.stderr
        return done.stdout

    greedy = words("--temperature", "0", "--max-tokens", "40")
    assert greedy == words("--temperature", "0", "--max-tokens", "40")
    assert greedy.startswith(words("--temperature", "0", "--max-tokens", "5").rstrip("\n\ufffd"))
    assert len({words("--temperature", "2", "--max-tokens", "40", "--seed", str(seed)) for seed in range(3)}) > 1
    (short, long), _ = generate([{"prompt_ids": [1], "ignore_eos": True},
                                 {"prompt_ids": [1], "max_tokens": 9, "ignore_eos": True}],
                                "--max-tokens", 4, model=TINY_MODEL)
    assert len(short["output_ids"]) == 4 and len(long["output_ids"]) == 9


@pytest.mark.parametrize("options, word", [
    (("--output", "/no/such/folder/out.jsonl"), "/no/such/folder"), (("--output", "/tmp"), "is a directory"),
    (("--prompts", "/dev/null"), "exclude each other"),
])
def test_what_cannot_be_done_is_said_before_workers_start(options, word):
    done = subprocess.run([str(BIN / "refrain"), "generate", "--model", str(TINY_MODEL), "--prompt", "a",
                           "--log-level", "info", *options], capture_output=True, text=True, timeout=within(30))
    assert done.returncode == 64 and word in done.stderr, done.stderr
    assert "worker" not in done.stderr


@pytest.mark.parametrize("damage, word", [
    (lambda f: f.unlink(), "model.safetensors"), (lambda f: f.write_bytes(f.read_bytes()[:100]), "model.safetensors"),
])
def test_broken_weights_are_the_inputs_fault(generate, copy_model, damage, word):
    model = copy_model(TINY_MODEL)
    damage(model / "model.safetensors")
    answers, done = generate([{"prompt_ids": [1]}], model=model, check=False)
    assert done.returncode == 64 and answers is None and word in done.stderr, (done.returncode, done.stderr)


def test_made_up_weights_run_at_any_layout(generate):
    lines = [{"prompt_ids": [3, 4, 5], "temperature": 0, "max_tokens": 8, "ignore_eos": True}]
    answers = [generate(lines, "--load-format", "dummy", "--tensor-parallel-size", tp, "--dtype", "float32",
                        model=TINY_MODEL)[0] for tp in (1, 2)]
    assert answers[0][0]["output_ids"] == answers[1][0]["output_ids"]


def test_nccl_alone_is_refused_where_there_is_none(generate):
    answers, done = generate([{"prompt_ids": [3]}], "--tensor-parallel-size", 2, "--device", "host",
                             "--disable-custom-all-reduce", model=TINY_MODEL, check=False)
    assert done.returncode == 64 and answers is None, done.stderr
    assert "disable_custom_all_reduce" in done.stderr and "host" in done.stderr, done.stderr


def test_an_interrupted_run_writes_nothing_and_leaves_nothing(tmp_path):
    prompts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(json.dumps({"prompt": "Once", "max_tokens": 4000, "ignore_eos": True}) + "\n")
    process = subprocess.Popen([str(BIN / "refrain"), "generate", "--model", str(SMOLLM2), "--prompts", str(prompts),
                                "--output", str(output), "--log-level", "debug"], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "workers ready" in line:
            break
    children = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(timeout=within(30)) != 0 and "interrupted" in rest
    assert not output.exists() and len(children) == 1
    assert not any(command_line(pid) for pid in children)


def plan(text):
    done = subprocess.run([str(BIN / "refrain"), "plan", "-"], input=text, capture_output=True, text=True, timeout=within(30))
    return done.returncode, json.loads(done.stdout)


def test_plan_explains_the_worked_table():
    """CG-33 with the first worked table of the specification."""
    batches = [{"query_lens": [1]}, {"query_lens": [1] * 3}, {"query_lens": [1] * 9}, {"query_lens": [1, 4]},
               {"query_lens": [17]}, {"query_lens": [1] * 3, "cascade": True}]
    expected = {
        "PIECEWISE": [("PIECEWISE", 1), ("PIECEWISE", 4), ("PIECEWISE", 12), ("PIECEWISE", 8), ("NONE", 17), ("PIECEWISE", 4)],
        "FULL": [("FULL", 1), ("FULL", 4), ("FULL", 12), ("FULL", 8), ("NONE", 17), ("NONE", 3)],
        "FULL_DECODE_ONLY": [("FULL", 1), ("FULL", 4), ("FULL", 12), ("NONE", 5), ("NONE", 17), ("NONE", 3)],
        "FULL_AND_PIECEWISE": [("FULL", 1), ("FULL", 4), ("FULL", 12), ("PIECEWISE", 8), ("NONE", 17), ("PIECEWISE", 4)],
    }
    for mode, rows in expected.items():
        code, answer = plan(json.dumps({"cudagraph_mode": mode, "cudagraph_capture_sizes": [1, 2, 4, 8, 16],
                                        "max_num_seqs": 12, "batches": batches}))
        assert code == 0 and answer["capture_sizes"] == [1, 2, 4, 8, 12, 16]
        assert [(d["mode"], d["num_tokens"]) for d in answer["dispatch"]] == rows, mode


def test_plan_refuses_a_bad_field_with_exit_2():
    code, answer = plan('{"cudagraph_capture_sizes": [0], "batches": []}')
    assert code == 2 and answer["error"]["field"] == "cudagraph_capture_sizes"
    code, answer = plan('{"cudagraph_mode": "HALF", "batches": []}')
    assert code == 2 and answer["error"]["field"] == "cudagraph_mode" and "FULL_AND_PIECEWISE" in answer["error"]["message"]


@pytest.mark.parametrize("path", sorted((ROOT / "configs/engine").glob("*.json")), ids=lambda p: p.stem)
def test_plan_takes_the_files_of_configs(path):
    done = subprocess.run([str(BIN / "refrain"), "plan", str(path)], capture_output=True, text=True, cwd=ROOT,
                          timeout=within(30))
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and max(answer["capture_sizes"]) >= json.loads(path.read_text())["max-num-seqs"]
    assert answer["cudagraph_mode"] == "FULL_AND_PIECEWISE" and answer["keys"]["FULL"]


def test_plan_takes_options_with_batches_and_names_bad_ones():
    """CG-33: a bad field is exit 2, also in a file of options."""
    options = {"max-num-seqs": 4, "cudagraph-capture-sizes": [1, 4], "compilation-config": {"mode": 3}}
    code, answer = plan(json.dumps({**options, "batches": [{"query_lens": [1, 1]}]}))
    assert code == 0 and [(d["mode"], d["num_tokens"]) for d in answer["dispatch"]] == [("FULL", 4)]
    for wrong, name in (({"max-num-seqz": 4}, "--max-num-seqz"), ({"block-size": 7}, "--block-size")):
        code, answer = plan(json.dumps({**options, **wrong}))
        assert code == 2 and name in answer["error"]["message"], answer


def test_plan_says_its_format_and_which_file_cannot_be_read():
    run = lambda *words: subprocess.run([str(BIN / "refrain"), "plan", *words], capture_output=True, text=True)  # noqa: E731
    assert run("--help").returncode == 0 and "query_lens" in run("--help").stdout
    assert run("no-such-file").returncode == 64 and "no-such-file" in run("no-such-file").stderr
    assert run().returncode == 64


def test_serve_and_generate_give_the_same_tokens(generate, start_server):
    server = start_server("--max-model-len", 512, "--max-num-seqs", 4)
    text = server.client().completions.create(model=SMOLLM2.name, prompt="def fibonacci(n):\n", temperature=0,
                                              max_tokens=32).choices[0].text
    answers, _ = generate([{"prompt": "def fibonacci(n):\n", "temperature": 0, "max_tokens": 32}],
                          "--max-model-len", 512, "--tensor-parallel-size", 2)
    assert answers[0]["text"] == text


def test_a_line_may_say_what_its_answer_looks_like(generate):
    lines = [{"prompt": "It is", "guided_regex": "[0-9]{3}", "max_tokens": 9},
             {"prompt": "It is", "guided_json": {"type": "array", "uniqueItems": True}}, {"prompt": "It is", "guided_regex": "(a"}]
    (number, keyword, regex), done = generate(lines, check=False)
    assert number["text"].isdigit() and len(number["text"]) == 3 and done.returncode != 0
    assert "uniqueItems" in keyword["error"]["message"] and "parenthesis" in regex["error"]["message"]
