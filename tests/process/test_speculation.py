"""Speculative decoding changes no token (CG-40): answers with prompt lookup, or with drafts of another model, equal those without,
log-probabilities included."""
import json
import random
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import SMOLLM2, TINY, Load, kill_busy, wait_for
from tiny_head import write_head

TINY_MODEL = TINY / "qwen3"
SMALL = ["--max-model-len", 512, "--max-num-batched-tokens", 256, "--max-num-seqs", 8, "--dtype", "float32"]
NGRAM = ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1,
                                             "prompt_lookup_max": 3})]


def drafts_of(model, drafts=3):
    return ["--speculative-config", json.dumps({"method": "draft_model", "model": str(model), "num_speculative_tokens": drafts})]


METHODS = {"ngram": NGRAM, "another_model": drafts_of(TINY / "qwen2"), "itself": drafts_of(TINY_MODEL)}


def tiny_lines(count=24):
    """Repeating prompts and every kind of sampling."""
    draw = random.Random(5)
    kinds = [{"temperature": 0}, {"temperature": 0, "logprobs": 3}, {"temperature": 1.0, "top_p": 0.9, "seed": 7},
             {"temperature": 0.7, "top_k": 5, "seed": 3, "logprobs": 0}, {"temperature": 0, "repetition_penalty": 1.3},
             {"temperature": 0.8, "seed": 1, "presence_penalty": 1.0, "frequency_penalty": 0.5},
             {"temperature": 0, "min_tokens": 9}, {"temperature": 0, "logit_bias": {"33": 2.0}},
             {"temperature": 0, "stop_token_ids": [40, 41, 42, 43, 44, 45]}]
    lines = []
    for i in range(count):
        phrase = [draw.randrange(3, 250) for _ in range(draw.randrange(1, 9))]
        prompt = (phrase * 12)[:draw.randrange(1, 60)]
        lines.append({"prompt_ids": prompt, "max_tokens": draw.randrange(1, 70), **kinds[i % len(kinds)]})
    return lines


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"])
def test_answers_equal_those_without_speculation_in_every_mode_CG40(generate, mode, tp):
    options = [*SMALL, "--tensor-parallel-size", tp, "--cudagraph-mode", mode]
    plain, _ = generate(tiny_lines(), *options, model=TINY_MODEL)
    for method in ["ngram", "another_model"]:
        fast, _ = generate(tiny_lines(), *options, *METHODS[method], model=TINY_MODEL)
        assert fast == plain, method


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"])
def test_a_draft_model_on_every_rank_alone_drafts_as_one_that_ranks_share_CG40(generate, mode):
    options = [*SMALL, "--tensor-parallel-size", 2, "--cudagraph-mode", mode]
    plain, _ = generate(tiny_lines(), *options, model=TINY_MODEL)
    for model in [TINY / "qwen2", TINY_MODEL]:
        config = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}
        fast, _ = generate(tiny_lines(), *options, "--speculative-config", json.dumps(config), model=TINY_MODEL)
        assert fast == plain, model


@pytest.mark.parametrize("more", [["--num-gpu-blocks-override", 14], ["--max-num-batched-tokens", 16],
                                  ["--no-async-scheduling"], ["--no-enable-prefix-caching"], ["--audit-rate", 0.5]])
def test_nothing_that_the_scheduler_does_shows_with_speculation_either_CG40(generate, more):
    plain, _ = generate(tiny_lines(), *SMALL, "--max-model-len", 160, model=TINY_MODEL)
    for method in ["ngram", "itself"]:
        fast, done = generate(tiny_lines(), *SMALL, "--max-model-len", 160, *more, *METHODS[method], "--log-level", "debug",
                              model=TINY_MODEL)
        assert fast == plain, method
        if "--num-gpu-blocks-override" in more:
            assert " 0 preemptions" not in done.stderr


@pytest.mark.parametrize("model, more, what", [
    (TINY / "llama3-rope", [], "a vocabulary of 515 tokens, the model one of 512"),
    (TINY / "qwen2", ["--tensor-parallel-size", 2], "draft_tensor_parallel_size is 3; it must be 1 or the 2 ranks"),
    (TINY / "nowhere", [], "nowhere")])
def test_a_draft_model_that_does_not_go_with_the_model_is_refused_with_a_sentence(generate, model, more, what):
    config = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3}
    if more:
        config["draft_tensor_parallel_size"] = 3
    _, done = generate(tiny_lines(1), *SMALL, *more, "--speculative-config", json.dumps(config), model=TINY_MODEL, check=False)
    assert done.returncode == 64 and what in done.stderr, done.stderr


def head_of(directory, method, drafts=3, **changes):
    write_head(directory, TINY_MODEL, method, **changes)
    return ["--speculative-config", json.dumps({"method": method, "model": str(directory), "num_speculative_tokens": drafts})]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_answers_with_a_draft_head_equal_those_without_speculation_CG40(generate, tmp_path, method, tp):
    head = head_of(tmp_path, method)
    for mode in ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]:
        options = [*SMALL, "--tensor-parallel-size", tp, "--cudagraph-mode", mode]
        plain, _ = generate(tiny_lines(), *options, model=TINY_MODEL)
        fast, done = generate(tiny_lines(), *options, *head, model=TINY_MODEL)
        assert fast == plain, mode


@pytest.mark.parametrize("more", [["--num-gpu-blocks-override", 14], ["--max-num-batched-tokens", 16],
                                  ["--no-async-scheduling"], ["--no-enable-prefix-caching"], ["--audit-rate", 0.5]])
def test_nothing_that_the_scheduler_does_shows_with_a_draft_head_CG40(generate, tmp_path, more):
    plain, _ = generate(tiny_lines(), *SMALL, "--max-model-len", 160, model=TINY_MODEL)
    fast, _ = generate(tiny_lines(), *SMALL, "--max-model-len", 160, *more, *head_of(tmp_path, "eagle3"), model=TINY_MODEL)
    assert fast == plain


@pytest.mark.parametrize("method, changes, what", [
    ("eagle", {"vocab_size": 500}, "a vocabulary of 500 tokens"),
    ("eagle", {"hidden_size": 32}, "a hidden_size of 32"),
    ("eagle3", {"without": "midlayer.self_attn.q_proj.weight"},
     "model.safetensors: tensor \"midlayer.self_attn.q_proj.weight\" is missing"),
    ("eagle3", {"eagle_aux_hidden_state_layer_ids": [0, 1, 40]}, "what goes into layer 40"),
    ("eagle3", {"draft_vocab_size": 9}, "tensor \"lm_head.weight\" has shape")])
def test_a_broken_draft_head_ends_the_start_with_a_sentence_R14(generate, tmp_path, method, changes, what):
    _, done = generate(tiny_lines(1), *SMALL, *head_of(tmp_path, method, **changes), model=TINY_MODEL, check=False)
    assert done.returncode == 64 and what in done.stderr, done.stderr


def test_a_model_that_copies_takes_fewer_steps_CG40(generate):
    """A real model, a bfloat16 one; the log of graphs that ran tells the steps."""
    def steps(done):
        return sum(int(line.split()[-1]) for line in re.findall(r"^ +\d+ +\d+ +\d+ \w+ +\d+$", done.stderr, re.M))

    line = {"prompt": ("one two three four five six seven eight nine ten " * 8).strip(), "temperature": 0, "max_tokens": 60}
    plain, slow = generate([line], "--max-model-len", 512, "--log-level", "debug")
    fast, quick = generate([line], "--max-model-len", 512, *NGRAM, "--log-level", "debug")
    assert fast[0]["text"] == plain[0]["text"]
    assert steps(slow) >= 60 and 0 < steps(quick) < 45


def metric_of(text, name):
    """The sum over the series of one name in what /metrics answered."""
    lines = [line for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
    assert lines, name
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def metric(server, name):
    return metric_of(server.get("/metrics")[1], name)


@pytest.mark.parametrize("method", ["ngram", "itself", "eagle3"])
def test_a_lost_rank_changes_no_token_and_drafts_are_counted_CG40(start_server, tmp_path, method):
    """Requests go on after their workers were killed, with what they had (R-8); every answer is that of a plain server."""
    options = ["--dtype", "float32", "--max-num-batched-tokens", 64, "--max-num-seqs", 4, "--max-model-len", 512]

    def answers(server, kill=False):
        def ask(seed):
            fields = {"model": TINY_MODEL.name, "prompt": [5, 6, 7, 8] * 6, "max_tokens": 400, "ignore_eos": True, "seed": seed,
                      "temperature": 0 if seed % 2 else 0.3, "return_token_ids": True}
            status, text = server.post("/v1/completions", fields)
            assert status == 200, text
            return json.loads(text)["choices"][0]["token_ids"]
        with ThreadPoolExecutor(6) as pool:
            load = Load(pool, ask, range(6))

            def busy():
                load.go_on()
                now = server.get("/metrics")[1]
                return (metric_of(now, "refrain:generation_tokens_total") > 300
                        and metric_of(now, "refrain:num_requests_running") >= 1)
            load.go_on()
            if kill:
                kill_busy(server.workers()[1], busy, 30, "tokens before the kill, and requests that run")
            return load.answers()

    plain = start_server(*options, model=TINY_MODEL, tp=2)
    [expected] = answers(plain)
    assert plain.stop() == 0
    speculation = head_of(tmp_path, "eagle3") if method == "eagle3" else METHODS[method]
    server = start_server(*options, *speculation, "--vllm-metrics", model=TINY_MODEL, tp=2)
    found = answers(server, kill=True)
    assert found == [expected] * len(found)
    wait_for(lambda: metric(server, "refrain:worker_group_restarts_total") == 1, 20, "one restart is counted")
    counted = server.get("/metrics")[1]   # once: a step that was under way behind the last answers still counts
    accepted = metric_of(counted, "vllm:spec_decode_num_accepted_tokens_total")
    assert (0 if method != "eagle3" else -1) < accepted <= metric_of(counted, "vllm:spec_decode_num_draft_tokens_total")
    assert accepted == metric_of(counted, "refrain:spec_decode_num_accepted_tokens_per_pos_total")
    assert server.stop() == 0


@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
def test_a_synthetic_acceptance_rate_is_the_share_of_drafts_that_count(start_server, rate):
    """To measure: whatever drafts say. Both ranks throw the same dice, else they would part."""
    config = {"method": "draft_model", "model": str(TINY_MODEL), "num_speculative_tokens": 3, "rejection_sample_method": "synthetic",
              "synthetic_acceptance_rate": rate}
    server = start_server("--max-num-seqs", 4, "--max-model-len", 512, "--speculative-config", json.dumps(config), model=TINY_MODEL, tp=2)

    def ask(first):
        status, text = server.post("/v1/completions", {"prompt": [first, 6, 7], "max_tokens": 400, "ignore_eos": True, "temperature": 0})
        assert status == 200 and json.loads(text)["usage"]["completion_tokens"] == 400, text
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, range(10, 18)))
    counted = server.get("/metrics")[1]
    drafted = metric_of(counted, "refrain:spec_decode_num_draft_tokens_total")
    accepted = metric_of(counted, "refrain:spec_decode_num_accepted_tokens_total")
    assert drafted > (1000 if rate else 100), "drafts that never count are given up"
    assert abs(accepted / drafted - rate) < 0.05
    assert metric_of(counted, "refrain:worker_group_restarts_total") == 0
    assert server.stop() == 0


def test_answers_with_a_grammar_beside_those_without_CG40(start_server):
    def answers(server):
        schema = {"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "integer", "minimum": 0, "maximum": 99}}
        copying = {"prompt": "one two three four five six " * 8, "max_tokens": 60, "temperature": 0}
        bound = {"prompt": "Three numbers:", "max_tokens": 40, "temperature": 0, "structured_outputs": {"json": schema}}

        def ask(fields):
            status, text = server.post("/v1/completions", {"model": SMOLLM2.name, **fields})
            assert status == 200, text
            return json.loads(text)["choices"][0]["text"]
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(ask, [copying, bound, bound, copying]))

    options = ["--dtype", "float32", "--max-num-seqs", 4, "--max-model-len", 512]
    plain = start_server(*options, model=SMOLLM2)
    expected = answers(plain)
    assert plain.stop() == 0
    assert len(json.loads(expected[1])) == 3
    server = start_server(*options, *NGRAM, model=SMOLLM2)
    assert answers(server) == expected
    assert metric(server, "refrain:spec_decode_num_accepted_tokens_total") > 0
    assert server.stop() == 0
