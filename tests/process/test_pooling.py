"""Models that pool: /v1/embeddings, /pooling, /score and /rerank, held against numpy's forward pass in double precision;
the official client; prompts in chunks, over two ranks, from the prefix cache and beside each other."""
import base64
import collections
import json
import subprocess

import numpy as np
import pytest
from conftest import BIN, TINY, Server
from pooling_reference import EOS, normalized, pool, write_model

TEXTS = ["The capital of France is Paris.", "A short one", "What is gravity? " * 9]
CHUNK = 16
OPTIONS = ["--max-num-seqs", 4, "--max-model-len", 256, "--max-num-batched-tokens", CHUNK, "--served-model-name", "tiny"]
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ mark }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")
CLOSE = {"rtol": 0, "atol": 1e-5}


def prompt(length, seed=0):
    return np.random.default_rng(seed).integers(3, 512, length).tolist()


def tokens_of(server, text):
    return json.loads(server.post("/tokenize", {"prompt": text})[1])["tokens"]


def vectors(server, **body):
    status, answer = server.post("/v1/embeddings", body)
    assert status == 200, answer
    return [np.array(entry["embedding"]) for entry in json.loads(answer)["data"]]


def raw(server, **body):
    status, answer = server.post("/pooling", body)
    assert status == 200, answer
    return [np.array(entry["data"]) for entry in json.loads(answer)["data"]]


def error_of(server, route, **body):
    status, answer = server.post(route, body)
    assert status == 400, answer
    return json.loads(answer)["error"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pooling") / "model"
    weights = write_model(folder, modules=("LAST", True), matryoshka_dimensions=[16, 32, 64])
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder, weights


@pytest.fixture(scope="module")
def weights(model):
    return model[1]


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    """By its modules.json it pools; two ranks, prompts in chunks of 16 tokens."""
    server = Server(tmp_path_factory.mktemp("log") / "serve.log", *OPTIONS, model=model[0], tp=2).start()
    yield server
    assert server.stop() == 0


def test_embeddings_are_numpys(server, weights):
    inputs = [prompt(n, n) for n in (1, 2, 15, 16, 17, 60, 256)]
    for one, tokens in zip(vectors(server, input=inputs), inputs):
        np.testing.assert_allclose(one, normalized(pool(weights, tokens)), **CLOSE)
    for one, tokens in zip(raw(server, input=inputs), inputs):
        np.testing.assert_allclose(one, pool(weights, tokens), rtol=1e-5, atol=1e-5)


def test_a_text_ends_with_the_token_that_its_tokenizer_adds(server, weights):
    for text, one in zip(TEXTS, vectors(server, input=TEXTS)):
        tokens = tokens_of(server, text)
        assert tokens[-1] == EOS
        np.testing.assert_allclose(one, normalized(pool(weights, tokens)), **CLOSE)
    plain = vectors(server, input=TEXTS[0], add_special_tokens=False)[0]
    np.testing.assert_allclose(plain, normalized(pool(weights, tokens_of(server, TEXTS[0])[:-1])), **CLOSE)


def test_a_chat_is_what_the_models_template_makes_of_it(server, weights):
    messages = [{"role": "user", "content": "What is gravity?"}, {"role": "assistant", "content": [{"type": "text", "text": "A force"}]}]
    for fields in ({}, {"add_generation_prompt": True}, {"chat_template_kwargs": {"mark": "!"}}, {"continue_final_message": True}):
        chat = {"messages": messages} | fields
        status, answer = server.post("/tokenize", {"add_generation_prompt": False} | chat)
        tokens = json.loads(answer)["tokens"]
        assert status == 200 and tokens[-1] != EOS
        np.testing.assert_allclose(vectors(server, **chat)[0], normalized(pool(weights, tokens)), **CLOSE)
        np.testing.assert_allclose(raw(server, **chat)[0], pool(weights, tokens), rtol=1e-5, atol=1e-5)
        assert json.loads(server.post("/v1/embeddings", chat)[1])["usage"]["prompt_tokens"] == len(tokens)


def test_cached_blocks_give_the_same_vector(server, weights):
    tokens = prompt(100, 7)
    first = vectors(server, input=tokens)[0]
    status, answer = server.post("/v1/embeddings", {"input": tokens})
    usage = json.loads(answer)["usage"]
    assert status == 200 and usage["prompt_tokens_details"]["cached_tokens"] >= 80
    np.testing.assert_allclose(json.loads(answer)["data"][0]["embedding"], first, **CLOSE)
    other = tokens[:90] + prompt(30, 8)
    np.testing.assert_allclose(vectors(server, input=other)[0], normalized(pool(weights, other)), **CLOSE)


def test_the_official_client_reads_floats_and_base64(server, weights):
    client = server.client()
    answer = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float", user="me")
    assert answer.object == "list" and answer.model == "tiny"
    assert [entry.index for entry in answer.data] == [0, 1, 2] and answer.data[0].object == "embedding"
    tokens = [tokens_of(server, text) for text in TEXTS]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, tokens))
    for entry, ids in zip(answer.data, tokens):
        np.testing.assert_allclose(entry.embedding, normalized(pool(weights, ids)), **CLOSE)
    # Without a format the client asks for base64 and decodes it.
    assert client.embeddings.create(model="tiny", input=TEXTS).data[2].embedding == pytest.approx(answer.data[2].embedding)
    status, body = server.post("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})
    text = json.loads(body)["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text, validate=True), np.float32),
                                  np.array(answer.data[0].embedding, np.float32))
    assert client.embeddings.create(model="tiny", input=prompt(9)).usage.prompt_tokens == 9


def test_dimensions_are_the_first_ones_normalized_again(server, weights):
    tokens = prompt(20, 3)
    short = vectors(server, input=tokens, dimensions=16)[0]
    np.testing.assert_allclose(short, normalized(pool(weights, tokens)[:16]), **CLOSE)
    error = error_of(server, "/v1/embeddings", input=tokens, dimensions=17)
    assert error["param"] == "dimensions" and "only supports [16,32,64] matryoshka dimensions" in error["message"]


def test_truncate_prompt_tokens_keeps_the_last_ones(server, weights):
    long = prompt(300, 4)
    for kept, expected in ((10, long[-10:]), (-1, long[-256:])):
        one = vectors(server, input=long, truncate_prompt_tokens=kept)[0]
        np.testing.assert_allclose(one, normalized(pool(weights, expected)), **CLOSE)


def test_pooling_normalizes_when_asked(server, weights):
    tokens = prompt(11, 5)
    np.testing.assert_allclose(raw(server, input=tokens, normalize=True)[0], normalized(pool(weights, tokens)), **CLOSE)
    answer = json.loads(server.post("/pooling", {"input": tokens, "task": "embed"})[1])
    assert answer["data"][0]["object"] == "pooling" and answer["id"].startswith("pool-")


def test_scores_are_cosines(server):
    one, two, three = (vectors(server, input=text)[0] for text in TEXTS)
    for fields in ({"text_1": TEXTS[0], "text_2": TEXTS[1:]}, {"queries": TEXTS[:1], "documents": TEXTS[1:]}):
        status, answer = server.post("/v1/score", fields)
        body = json.loads(answer)
        assert status == 200 and [entry["object"] for entry in body["data"]] == ["score", "score"]
        assert [entry["score"] for entry in body["data"]] == pytest.approx([one @ two, one @ three], abs=1e-5)
    pairs = json.loads(server.post("/score", {"text_1": TEXTS[:2], "text_2": TEXTS[1:]})[1])["data"]
    assert [entry["score"] for entry in pairs] == pytest.approx([one @ two, two @ three], abs=1e-5)
    assert "1:1, 1:N or N:N" in error_of(server, "/score", text_1=TEXTS[:2], text_2=TEXTS)["message"]


def test_rerank_sorts_documents(server):
    query, *documents = TEXTS
    scores = [vectors(server, input=query)[0] @ one for one in vectors(server, input=documents)]
    for route in ("/rerank", "/v1/rerank", "/v2/rerank"):
        results = json.loads(server.post(route, {"query": query, "documents": documents})[1])["results"]
        best = int(np.argmax(scores))
        assert [entry["index"] for entry in results] == [best, 1 - best]
        assert results[0]["document"]["text"] == documents[best]
        assert results[0]["relevance_score"] == pytest.approx(scores[best], abs=1e-5)
    assert len(json.loads(server.post("/rerank", {"query": query, "documents": documents, "top_n": 1})[1])["results"]) == 1


@pytest.mark.parametrize("route, body, field", [
    ("/v1/embeddings", {}, "input"),
    ("/v1/embeddings", {"input": []}, "input"),
    ("/v1/embeddings", {"input": [[5], {"a": 1}]}, "input"),
    ("/v1/embeddings", {"input": [5, -1]}, "input"),
    ("/v1/embeddings", {"input": [5, 9999]}, "input"),
    ("/v1/embeddings", {"input": [[]]}, "input"),
    ("/v1/embeddings", {"input": prompt(257)}, "input"),
    ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
    ("/v1/embeddings", {"input": "x", "embed_dtype": "fp8_e4m3"}, "embed_dtype"),
    ("/v1/embeddings", {"input": "x", "endianness": "big"}, "endianness"),
    ("/v1/embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
    ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": 257}, "truncate_prompt_tokens"),
    ("/v1/embeddings", {"messages": []}, "messages"),
    ("/v1/embeddings", {"messages": [{"role": "user", "content": 7}]}, "messages"),
    ("/v1/embeddings", {"messages": [{"role": "user", "content": "x"}], "input": "x"}, "messages"),
    ("/v1/embeddings", {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True}, "add_special_tokens"),
    ("/v1/embeddings", {"messages": [{"role": "user", "content": "x"}], "chat_template": "x"}, "chat_template"),
    ("/v1/embeddings", {"messages": [{"role": "user", "content": "x " * 300}]}, "prompt"),
    ("/score", {"messages": [{"role": "user", "content": "x"}]}, "messages"),
    ("/pooling", {"input": "x", "task": "token_embed"}, "task"),
    ("/score", {"text_1": "x"}, "text_2"),
    ("/score", {"text_1": "x", "text_2": [1]}, "text_2"),
    ("/rerank", {"query": ["a", "b"], "documents": ["x", "y"]}, "query"),
    ("/rerank", {"query": "a", "documents": []}, "documents"),
])
def test_what_is_wrong_is_named(server, route, body, field):
    error = error_of(server, route, **body)
    assert error["param"] == field, error
    assert field in error["message"] or "prompt" in error["message"], error


def test_a_model_that_pools_generates_nothing(server):
    for route, api in (("/v1/completions", "Completions"), ("/v1/chat/completions", "Chat Completions"),
                       ("/v1/responses", "Responses"), ("/v1/messages", "Messages")):
        assert error_of(server, route, prompt="x")["message"] == f"The model does not support {api} API"


def test_fields_that_nothing_reads_are_said_and_steps_are_counted(server):
    assert server.post("/v1/embeddings", {"input": "x", "made_up": 1})[0] == 200
    assert 'the field "made_up", which is ignored' in server.log.read_text()

    def counters():
        """prompt tokens, requests that ended well, generated tokens, steps by mode"""
        lines = [line.rsplit(" ", 1) for line in server.get("/metrics")[1].splitlines() if not line.startswith("#")]
        totals = [sum(float(value) for name, value in lines if name.split("{")[0] == f"refrain:{counter}_total")
                  for counter in ("prompt_tokens", "request_success", "generation_tokens")]
        modes = collections.Counter()
        for use in json.loads(server.get("/cudagraphs")[1])["dispatch"]:
            modes[use["mode"]] += use["count"]
        return np.array(totals), modes
    before, modes = counters()
    vectors(server, input=prompt(40, 99))
    after, modes_after = counters()
    assert (after - before).tolist() == [40, 1, 0] and after[2] == 0
    # Chunks of 16, 16 and 8 tokens, of which the last one fits a captured size.
    assert modes_after - modes == {"NONE": 2, "PIECEWISE": 1}


@pytest.mark.parametrize("pooling, modules", [("MEAN", ("MEAN", False)), ("CLS", None)])
def test_mean_and_cls_in_a_small_cache(tmp_path, pooling, modules):
    """One rank; a cache that holds two long prompts, so that prompts side by side wait for each other."""
    weights = write_model(tmp_path / "model", 2, "Qwen3Model", modules)
    own = [] if modules else ["--pooler-config", json.dumps({"pooling_type": pooling, "normalize": False})]
    server = Server(tmp_path / "log", *OPTIONS, "--num-gpu-blocks-override", 36, *own, model=tmp_path / "model", tp=1).start()
    try:
        inputs = [prompt(n, n) for n in (250, 3, 130, 131, 17, 250, 64)]
        for _ in range(2):
            for one, tokens in zip(vectors(server, input=inputs), inputs):
                np.testing.assert_allclose(one, pool(weights, tokens, pooling), rtol=1e-5, atol=1e-5)
    finally:
        assert server.stop() == 0


def test_a_model_that_generates_has_no_embeddings_unless_it_is_converted(tmp_path):
    server = Server(tmp_path / "log", *OPTIONS, model=TINY / "qwen3", tp=1).start()
    try:
        for route, api in (("/v1/embeddings", "Embeddings"), ("/pooling", "Pooling"), ("/score", "Score"),
                           ("/rerank", "Rerank (Score)")):
            assert error_of(server, route, input="x")["message"] == f"The model does not support {api} API"
    finally:
        assert server.stop() == 0
    server = Server(tmp_path / "log", *OPTIONS, "--convert", "embed", model=TINY / "qwen3", tp=1).start()
    try:
        one, = vectors(server, input="Hello")
        assert one.shape == (64,) and np.linalg.norm(one) == pytest.approx(1, abs=1e-5)
        assert "does not support matryoshka" in error_of(server, "/v1/embeddings", input="x", dimensions=8)["message"]
    finally:
        assert server.stop() == 0


def refusal(model, *options):
    done = subprocess.run([BIN / "refrain", "serve", "--model", model, *map(str, options)], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 64, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("architecture", ["BertModel", "XLMRobertaForSequenceClassification", "ModernBertModel"])
def test_encoders_are_refused_by_name(tmp_path, architecture):
    write_model(tmp_path / "model", architecture=architecture)
    said = refusal(tmp_path / "model")
    assert f'"{architecture}"' in said and "encoders" in said


def test_what_does_not_go_together_is_refused(tmp_path):
    model = tmp_path / "model"
    write_model(model, architecture="Qwen3Model")
    assert "does not support `--runner generate`" in refusal(model, "--runner", "generate")
    assert "--enable-lora" in refusal(model, "--enable-lora")
    assert "--audit-rate" in refusal(model, "--audit-rate", 0.5)
    assert "--speculative-config" in refusal(model, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}')
    assert 'pooling_type "ALL"' in refusal(model, "--pooler-config", '{"pooling_type": "ALL"}')
    assert '"step_tag_id"' in refusal(model, "--pooler-config", '{"step_tag_id": 3}')
    assert "--pooler-config needs a model that pools" in refusal(TINY / "qwen3", "--pooler-config", '{"pooling_type": "LAST"}')
    assert "--convert embed" in refusal(TINY / "qwen3", "--runner", "pooling", "--convert", "none")
    modules = tmp_path / "modules"
    write_model(modules, modules=("LAST", True))
    listed = json.loads((modules / "modules.json").read_text())
    listed[-1]["type"] = "sentence_transformers.models.Dense"
    (modules / "modules.json").write_text(json.dumps(listed))
    assert "models.Dense" in refusal(modules)
