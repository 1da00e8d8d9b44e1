"""LoRA adapters over HTTP: equal to the merged checkpoint, mixed in one batch, loaded and unloaded while others run."""
import concurrent.futures
import json
import re
import threading

import numpy as np
import pytest
from adapters import merge, write_adapter
from conftest import TINY, Load, kill_busy, wait_for
from safetensors.numpy import load_file, save_file
from tiny_head import write_head

MODEL = TINY / "llama-bias-f32"
OPTIONS = ("--served-model-name", "base", "--dtype", "float32", "--max-num-seqs", 8, "--max-num-batched-tokens", 64,
           "--cudagraph-capture-sizes", "1,2,4,8,16,32,64", "--num-gpu-blocks-override", 256, "--audit-rate", 1)
PROMPTS = ([5, 7, 9, 11], [17] * 20 + [3, 5, 8], list(range(20, 120)))


def complete(server, model, prompt, tokens=12, **fields):
    status, text = server.post("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                                   "return_token_ids": True, "ignore_eos": True, **fields})
    assert status == 200, text
    answer = json.loads(text)
    assert answer["model"] == model
    return answer["choices"][0]["token_ids"]


def all_answers(server, model):
    return [complete(server, model, prompt) for prompt in PROMPTS]


def audits(server):
    audit = json.loads(server.get("/cudagraphs?format=json")[1])["audit"]
    assert audit["steps"] > 0 and audit["differences"] == 0, audit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Adapters one, two and three below it, and the answers of their merged checkpoints in `merged`."""
    folder = tmp_path_factory.mktemp("adapters")
    write_adapter(folder / "one", MODEL, 1)
    write_adapter(folder / "two", MODEL, 2, rank=16, alpha=4, rslora=True)
    write_adapter(folder / "three", MODEL, 3, rank=3, alpha=3, targets=("q_proj", "v_proj", "down_proj"), strength=2,
                  dtype=np.float16)
    return folder


@pytest.fixture(scope="module")
def merged(folder, tmp_path_factory):
    """Answers by model: of the base, and of each adapter from its merged checkpoint."""
    from conftest import Server
    answers = {}
    for name in ("base", "one", "two", "three"):
        model = MODEL if name == "base" else merge(folder / name, MODEL, tmp_path_factory.mktemp("merged") / name)
        server = Server(tmp_path_factory.mktemp("log") / "serve.log", *OPTIONS, "--enforce-eager", model=model, tp=1).start()
        answers[name] = all_answers(server, "base")
        assert server.stop() == 0
    assert len({str(a) for a in answers.values()}) == 4, "the adapters change nothing"
    return answers


def modules(folder, *names):
    return ("--lora-modules", *(f"{name}={folder / name}" for name in names))


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("tp", [1, 2])
def test_an_adapter_answers_as_its_merged_checkpoint(start_server, folder, merged, mode, tp):
    server = start_server(*OPTIONS, "--enable-lora", "--max-loras", 3, "--cudagraph-mode", mode,
                          *modules(folder, "one", "two", "three"), model=MODEL, tp=tp)
    for name, expected in merged.items():
        assert all_answers(server, name) == expected, name
    with concurrent.futures.ThreadPoolExecutor(12) as pool:  # adapters and none in the same steps
        jobs = {(name, i): pool.submit(complete, server, name, prompt)
                for i, prompt in enumerate(PROMPTS) for name in merged}
        for (name, i), job in jobs.items():
            assert job.result() == merged[name][i], (name, i)
    audits(server)
    ran = json.loads(server.get("/cudagraphs?format=json")[1])["dispatch"]
    assert {row["has_lora"] for row in ran} == {True, False}
    assert (mode == "NONE") == all(row["mode"] == "NONE" for row in ran)


def test_ranks_of_8_to_256_in_one_batch_answer_as_their_merged_checkpoints(start_server, tmp_path):
    ranks, answers = (8, 64, 256), {}
    for rank in ranks:
        write_adapter(tmp_path / f"r{rank}", MODEL, rank, rank=rank, alpha=rank, rslora=rank == 64)
        plain = start_server(*OPTIONS, "--enforce-eager", model=merge(tmp_path / f"r{rank}", MODEL, tmp_path / f"m{rank}"), tp=1)
        answers[f"r{rank}"] = all_answers(plain, "base")
        assert plain.stop() == 0
    server = start_server(*OPTIONS, "--enable-lora", "--max-loras", 3, "--max-lora-rank", 256, *modules(tmp_path, *answers), model=MODEL, tp=2)
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        jobs = [(name, i, pool.submit(complete, server, name, prompt)) for i, prompt in enumerate(PROMPTS) for name in answers]
        for name, i, job in jobs:
            assert job.result() == answers[name][i], (name, i)
    audits(server)


def test_more_adapters_than_places_take_turns(start_server, folder, merged):  # CG-15: one key serves both
    many = [f"{name}{i}={folder / name}" for i in range(20) for name in ("one", "two", "three")]
    server = start_server(*OPTIONS, "--enable-lora", "--max-loras", 1, *modules(folder, "one", "two", "three"), *many,
                          "--lora-dir", folder, "--compilation-config", '{"cudagraph_specialize_lora": false}', model=MODEL, tp=1)
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        jobs = [(name, i, pool.submit(complete, server, name, prompt))
                for _ in range(3) for i, prompt in enumerate(PROMPTS) for name in merged]
        for name, i, job in jobs:
            assert job.result() == merged[name][i], (name, i)
        for i, answer in enumerate(pool.map(lambda module: complete(server, module.split("=")[0], PROMPTS[0]), many)):
            assert answer == merged[("one", "two", "three")[i % 3]][0], many[i]
    audits(server)
    assert {row["has_lora"] for row in json.loads(server.get("/cudagraphs?format=json")[1])["dispatch"]} == {True}
    load = lambda name: server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": "two"})
    assert load("the-64th")[0] == 200
    status, text = load("the-65th")
    assert status == 400 and "--max-cpu-loras" in text, text


@pytest.mark.parametrize("method, tp", [("ngram", 2), ("draft_model", 2), ("eagle3", 1)])
def test_drafts_are_checked_with_the_adapter(start_server, folder, merged, tmp_path, method, tp):  # CG-35, CG-40
    drafts = {"method": method, "num_speculative_tokens": 3}
    if method != "ngram":  # made without an adapter, by the base model itself or a head of it
        drafts["model"] = str(MODEL)
    if method == "eagle3":
        write_head(tmp_path / "head", MODEL, method)
        drafts["model"] = str(tmp_path / "head")
    server = start_server(*OPTIONS, "--enable-lora", "--max-loras", 2, *modules(folder, "one", "two"), "--speculative-config",
                          json.dumps(drafts), model=MODEL, tp=tp)
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        jobs = [(name, i, pool.submit(complete, server, name, prompt))
                for i, prompt in enumerate(PROMPTS) for name in ("one", "base", "two")]
        for name, i, job in jobs:
            assert job.result() == merged[name][i], (name, i)
    audits(server)


def test_a_cached_prompt_is_of_its_adapter_alone(start_server, folder, merged):
    server = start_server(*OPTIONS, "--enable-lora", "--max-loras", 2, *modules(folder, "one", "two"), model=MODEL, tp=1)
    prompt = PROMPTS[2]
    for _ in range(2):
        for name in ("one", "base", "two"):
            assert complete(server, name, prompt) == merged[name][2], name
    cached = [json.loads(server.post("/v1/completions", {"model": name, "prompt": prompt, "max_tokens": 1})[1])["usage"]
              ["prompt_tokens_details"]["cached_tokens"] for name in ("one", "base", "two")]
    assert min(cached) > 0, "each finds its own blocks"


def test_models_lists_adapters_and_an_unknown_name_is_404(start_server, folder):
    server = start_server(*OPTIONS, "--enable-lora", *modules(folder, "one"), model=MODEL, tp=1)
    models = {m["id"]: m for m in json.loads(server.get("/v1/models")[1])["data"]}
    assert models["base"]["parent"] is None and models["one"]["parent"] == "base"
    assert json.loads(server.get("/v1/models/one")[1])["root"] == str(folder / "one")
    assert server.get("/v1/models/two")[0] == 404
    assert server.post("/v1/completions", {"model": "two", "prompt": [5], "max_tokens": 1})[0] == 404
    # Nothing is loaded over HTTP without --lora-dir.
    status, text = server.post("/v1/load_lora_adapter", {"lora_name": "two", "lora_path": str(folder / "two")})
    assert status == 404 and "--lora-dir" in text


def test_adapters_come_and_go_over_http(start_server, folder, merged):
    server = start_server(*OPTIONS, "--enable-lora", "--max-loras", 1, "--max-cpu-loras", 2, "--lora-dir", folder,
                          model=MODEL, tp=2)

    def load(name, path=None):
        return server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path or name)})

    def unload(name):
        return server.post("/v1/unload_lora_adapter", {"lora_name": name})

    assert load("one")[0] == 200
    assert load("two", folder / "two")[0] == 200
    status, text = load("three")
    assert status == 400 and "--max-cpu-loras" in text
    status, text = load("one")
    assert status == 400 and "already been loaded" in text
    assert complete(server, "one", PROMPTS[0]) == merged["one"][0]
    assert complete(server, "two", PROMPTS[1]) == merged["two"][1]

    # Unloading waits for what runs, which ends as it would have; new requests do not find it.
    first = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        def stream():
            tokens = []
            for chunk in server.client().completions.create(model="one", prompt=PROMPTS[0], max_tokens=200, temperature=0,
                                                            stream=True, extra_body={"ignore_eos": True,
                                                                                     "return_token_ids": True}):
                tokens += chunk.choices[0].token_ids if chunk.choices else []
                first.set()
            return tokens
        running = pool.submit(stream)
        assert first.wait(60)
        gone = pool.submit(unload, "one")
        wait_for(lambda: server.post("/v1/completions", {"model": "one", "prompt": [5], "max_tokens": 1})[0] == 404, 20,
                 "no request finds it")
        tokens = running.result()
        assert gone.result()[0] == 200
    assert len(tokens) == 200 and tokens[:12] == merged["one"][0]
    assert unload("one")[0] == 404
    assert load("three")[0] == 200
    # The name comes back with other weights: nothing of the first is left, cached blocks neither.
    assert unload("two")[0] == 200
    assert load("two", "one")[0] == 200
    assert complete(server, "two", PROMPTS[1]) == merged["one"][1]
    assert complete(server, "three", PROMPTS[1]) == merged["three"][1]
    assert complete(server, "base", PROMPTS[1]) == merged["base"][1]
    audits(server)
    assert unload("nobody")[0] == 404


@pytest.mark.parametrize("path", ["../adapters", "/etc", "", ".", "..", "one/../one", "nowhere", "\0", "inside/deeper"])
def test_a_client_names_no_path_outside(path, lora_server):
    status, text = lora_server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path})
    assert status == 400 and "lora_path" in text, text


@pytest.fixture(scope="module")
def lora_server(tmp_path_factory, folder):
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("lora") / "serve.log", *OPTIONS, "--enable-lora", "--lora-dir", folder,
                    model=MODEL, tp=1).start()
    (folder / "inside" / "deeper").mkdir(parents=True, exist_ok=True)
    yield server
    assert server.stop() == 0


def broken(folder, name, change_config=None, change_tensors=None):
    write_adapter(folder / name, MODEL, 9)
    if change_config:
        path = folder / name / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change_config}))
    if change_tensors:
        path = folder / name / "adapter_model.safetensors"
        save_file(change_tensors(load_file(path)), path)


Q = "base_model.model.model.layers.0.self_attn.q_proj"
EMBEDDING = "base_model.model.model.embed_tokens"
BROKEN = {
    "dora": ({"use_dora": True}, None, ["adapter_config.json", "use_dora"]),
    "saved": ({"modules_to_save": ["lm_head"]}, None, ["modules_to_save"]),
    "bias": ({"bias": "all"}, None, ["adapter_config.json", "bias"]),
    "wide": ({"r": 9}, None, ["adapter_model.safetensors", "rank 9"]),
    "magnitude": (None, lambda t: {**t, f"{Q}.lora_magnitude_vector": np.ones(4, np.float32)},
                  ["adapter_model.safetensors", "lora_magnitude_vector", "DoRA"]),
    "embedding": (None, lambda t: {**t, f"{EMBEDDING}.lora_embedding_A": np.ones((8, 4), np.float32)},
                  [f"{EMBEDDING}.lora_embedding_A", "4 columns"]),
    "half-embedding": (None, lambda t: {k: v for k, v in t.items() if k != f"{EMBEDDING}.lora_embedding_B"},
                       [f"{EMBEDDING}.lora_embedding_B", "missing"]),
    "embedding-as-linear": (None, lambda t: {**t, f"{EMBEDDING}.lora_A.weight": np.ones((8, 512), np.float32)},
                            [f"{EMBEDDING}.lora_A.weight", "lora_embedding_A"]),
    "head": (None, lambda t: {**t, "base_model.model.lm_head.lora_B.weight": np.ones((500, 8), np.float32)},
             ["lm_head.lora_B.weight", "500 rows"]),
    "tied": ({"ensure_weight_tying": True}, None, ["adapter_model.safetensors", "lm_head", "ensure_weight_tying"]),
    "half": (None, lambda t: {k: v for k, v in t.items() if k != f"{Q}.lora_B.weight"}, [f"{Q}.lora_B.weight", "missing"]),
    "shape": (None, lambda t: {**t, f"{Q}.lora_B.weight": np.ones((7, 8), np.float32)}, [f"{Q}.lora_B.weight", "7 rows"]),
    "layer": (None, lambda t: {**t, **{k.replace("layers.0", "layers.77"): v for k, v in t.items() if "layers.0.mlp" in k}},
              ["layers.77", "no such module"]),
    "nan": (None, lambda t: {**t, f"{Q}.lora_A.weight": np.full_like(t[f"{Q}.lora_A.weight"], np.nan)},
            [f"{Q}.lora_A.weight", "not finite"]),
    "scaled": ({"lora_alpha": 64}, lambda t: {**t, f"{Q}.lora_B.weight": np.full_like(t[f"{Q}.lora_B.weight"], 1e38)},
               [f"{Q}.lora_B.weight", "times the scale 8"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_adapter_is_a_400_that_names_file_and_tensor(folder, lora_server, name):
    config, tensors, words = BROKEN[name]
    broken(folder, f"broken-{name}", config, tensors)
    status, text = lora_server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": f"broken-{name}"})
    assert status == 400, text
    for word in words:
        assert word in text, (word, text)
    assert lora_server.post("/v1/completions", {"model": name, "prompt": [5], "max_tokens": 1})[0] == 404
    assert json.loads(lora_server.get("/health")[1])["status"] == "healthy"


@pytest.mark.parametrize("module", ["model.embed_tokens", "lm_head"])
def test_base_weights_that_peft_saves_with_embeddings_must_be_the_models(start_server, folder, merged, module):
    server = start_server(*OPTIONS, "--enable-lora", "--lora-dir", folder, model=MODEL, tp=2)
    tensor = f"base_model.model.{module}.base_layer.weight"
    weight = load_file(MODEL / "model.safetensors")[f"{module}.weight"]
    other = weight.copy()
    other[500, 3] += 1e-3  # of the second rank
    for name, saved in (("same", weight), ("other", other), ("cut", weight[:500])):
        broken(folder, f"{name}-{module}", None, lambda t, saved=saved: {
            **load_file(folder / "one" / "adapter_model.safetensors"), tensor: np.ascontiguousarray(saved)})
    assert server.post("/v1/load_lora_adapter", {"lora_name": "one", "lora_path": f"same-{module}"})[0] == 200
    assert complete(server, "one", PROMPTS[1]) == merged["one"][1]
    for name, word in (("other", "row 500"), ("cut", "shape")):
        status, text = server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": f"{name}-{module}"})
        assert status == 400 and tensor in text and word in text and "adapter_model.safetensors" in text, text


def test_an_adapter_that_is_too_wide_or_cut_short_is_refused(folder, lora_server):
    write_adapter(folder / "rank-32", MODEL, 5, rank=32)
    status, text = lora_server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "rank-32"})
    assert status == 400 and "max_lora_rank" in text
    write_adapter(folder / "cut", MODEL, 5)
    path = folder / "cut" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    status, text = lora_server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "cut"})
    assert status == 400 and "adapter_model.safetensors" in text


def test_a_broken_module_ends_the_start_with_its_reason(start_server, folder):
    write_adapter(folder / "bad-at-start", MODEL, 5, rank=64)
    server = start_server(*OPTIONS, "--enable-lora", *modules(folder, "bad-at-start"), model=MODEL, tp=1, ready=False)
    assert server.process.wait(timeout=60) == 64
    assert "max_lora_rank" in server.log.read_text()


def test_requests_go_on_with_their_adapters_after_a_lost_worker(start_server, folder, merged):  # R-8
    server = start_server(*OPTIONS, "--enable-lora", "--max-loras", 2, *modules(folder, "one"), "--lora-dir", folder,
                          model=MODEL, tp=2)
    assert server.post("/v1/load_lora_adapter", {"lora_name": "two", "lora_path": "two"})[0] == 200
    alone = {name: complete(server, name, PROMPTS[1], tokens=300) for name in ("one", "two")}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        load = Load(pool, lambda name: complete(server, name, PROMPTS[1], tokens=300), alone)

        def both_run():
            load.go_on()
            return re.search(r"^refrain:num_requests_running\S* 2$", server.get("/metrics")[1], re.M)
        kill_busy(server.workers()[0], both_run, 20, "both run")
        assert load.answers() == [list(alone.values())] * len(load.rounds)
    for name, tokens in alone.items():
        assert tokens[:12] == merged[name][1], name
    audits(server)


def test_requests_that_make_room_go_on_with_their_adapters(start_server, folder, merged):  # preemption
    server = start_server(*OPTIONS[:-4], "--num-gpu-blocks-override", 24, "--max-model-len", 256, "--audit-rate", 1,
                          "--enable-lora", "--max-loras", 2, *modules(folder, "one", "two"), model=MODEL, tp=1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [(name, pool.submit(complete, server, name, PROMPTS[1], tokens=150))
                for name in ("one", "base", "two", "one", "two")]
        for name, job in jobs:
            assert job.result()[:12] == merged[name][1], name
    metrics = server.get("/metrics")[1]
    assert any(line.startswith("refrain:num_preemptions_total") and float(line.split()[-1]) > 0
               for line in metrics.splitlines()), "nobody made room"
    audits(server)
