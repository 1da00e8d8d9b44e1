"""R-14: model directories broken in one place each. `refrain generate` must end with 64, name the file and the field
(or tensor), and not crash, hang or serve something else."""
import json
import re
import struct
import subprocess

import pytest
from conftest import BIN, TINY, free_port, within

INDEX = "model.safetensors.index.json"


def fields(name, **changes):
    """Sets fields of a JSON file; a value of ... removes the field."""
    def breakage(model):
        content = json.loads((model / name).read_text())
        for key, value in changes.items():
            if value is ...:
                del content[key]
            else:
                content[key] = value
        (model / name).write_text(json.dumps(content))  # NaN is written as such
    return breakage


def config(**changes):
    return fields("config.json", **changes)


def text(name, content):
    return lambda model: (model / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def bpe(**changes):
    """Fields of the tokenizer's model."""
    def breakage(model):
        content = json.loads((model / "tokenizer.json").read_text())
        content["model"] |= changes
        (model / "tokenizer.json").write_text(json.dumps(content))
    return breakage


def header(edit, keep=None):
    """Rewrites the header of model.safetensors; `keep`: bytes of data left behind it."""
    def breakage(model):
        path = model / "model.safetensors"
        whole = path.read_bytes()
        size = struct.unpack("<Q", whole[:8])[0]
        parsed = json.loads(whole[8:8 + size])
        new = edit(parsed)
        new = json.dumps(parsed if new is None else new).encode() if not isinstance(new, bytes) else new
        path.write_bytes(struct.pack("<Q", len(new)) + new + whole[8 + size:][:keep])
    return breakage


def tensor(**changes):
    """Fields of model.norm.weight (64 bfloat16)."""
    return header(lambda parsed: parsed["model.norm.weight"].update(changes))


def size_field(value):
    def breakage(model):
        path = model / "model.safetensors"
        path.write_bytes(struct.pack("<Q", value) + path.read_bytes()[8:])
    return breakage


def index(edit):
    def breakage(model):
        content = json.loads((model / INDEX).read_text())
        (model / INDEX).write_text(json.dumps(edit(content)))
    return breakage


def mapped_to(name):
    """The index's first tensor lies in `name`."""
    def edit(content):
        content["weight_map"][next(iter(content["weight_map"]))] = name
        return content
    return index(edit)


def rename_tensor(parsed):
    parsed["model.norm.weird"] = parsed.pop("model.norm.weight")


CONFIG = [
    ("missing", lambda m: (m / "config.json").unlink(), []),
    ("cut short", text("config.json", '{"architectures": ["Qwen3'), []),
    ("empty", text("config.json", ""), []),
    ("a list", text("config.json", "[]"), []),
    ("not UTF-8", text("config.json", b'{"architectures": ["\xff"]}'), ["not valid JSON"]),
    ("a bracket 100,000 deep", text("config.json", "[" * 100_000), []),
    ("hidden_size missing", config(hidden_size=...), ["hidden_size"]),
    ("hidden_size negative", config(hidden_size=-64), ["hidden_size"]),
    ("hidden_size zero", config(hidden_size=0), ["hidden_size"]),
    ("hidden_size 2^63", config(hidden_size=2**63), ["hidden_size"]),
    ("hidden_size 1e308", config(hidden_size=1e308), ["hidden_size"]),
    ("hidden_size a string", config(hidden_size="64"), ["hidden_size"]),
    ("vocab_size huge", config(vocab_size=2**40), ["vocab_size"]),
    ("layers huge", config(num_hidden_layers=2**31), ["num_hidden_layers"]),
    ("heads zero", config(num_attention_heads=0), ["num_attention_heads"]),
    ("heads do not divide", config(num_key_value_heads=3), ["num_key_value_heads"]),
    ("head_dim negative", config(head_dim=-1), ["head_dim"]),
    ("eps NaN", config(rms_norm_eps=float("nan")), []),
    ("eps a list", config(rms_norm_eps=[1e-5]), ["rms_norm_eps"]),
    ("rope_theta negative", config(rope_theta=-1), ["rope_theta"]),
    ("unknown rope", config(rope_scaling={"rope_type": "spiral", "factor": 2}), ["rope", "spiral"]),
    ("rope without factor", config(rope_scaling={"rope_type": "linear", "factor": 0}), ["factor"]),
    ("unknown activation", config(hidden_act="sine"), ["hidden_act", "sine"]),
    ("unknown architecture", config(architectures=["HalConfig"]), ["architectures", "HalConfig"]),
    ("architectures no list", config(architectures=7), ["architectures"]),
    ("unknown dtype", config(torch_dtype="float3"), ["torch_dtype", "float3"]),
    ("eos a string", config(eos_token_id="end"), ["eos_token_id"]),
]

TOKENIZER = [
    ("empty", text("tokenizer.json", ""), []),
    ("cut short", lambda m: text("tokenizer.json", (m / "tokenizer.json").read_bytes()[:9000])(m), []),
    ("a bracket 100,000 deep", text("tokenizer.json", "[" * 100_000), ["deep"]),
    ("not UTF-8", text("tokenizer.json", b'{"model": "\xff"}'), ["not valid JSON"]),
    ("no model", fields("tokenizer.json", model=...), ["model"]),
    ("unknown model", bpe(type="Oracle"), ["model has type", "Oracle"]),
    ("vocab a list", bpe(vocab=["a"]), ["model.vocab"]),
    ("negative id", bpe(vocab={"a": -1}), ["model.vocab"]),
    ("id 2^40", bpe(vocab={"a": 2**40}), ["model.vocab"]),
    ("merge of unknown tokens", bpe(merges=["abc def"]), ["model.merges"]),
    ("merges a number", bpe(merges=5), ["model.merges"]),
    ("unknown pre-tokenizer", fields("tokenizer.json", pre_tokenizer={"type": "Chop"}), ["pre_tokenizer", "Chop"]),
    ("broken pattern", fields("tokenizer.json", pre_tokenizer={
        "type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}), ["pre_tokenizer"]),
    ("unknown normalizer", fields("tokenizer.json", normalizer={"type": "Shout"}), ["normalizer", "Shout"]),
    ("unknown decoder", fields("tokenizer.json", decoder={"type": "Enigma"}), ["decoder", "Enigma"]),
    ("added token without content", fields("tokenizer.json", added_tokens=[{"id": 3}]), ["added_tokens"]),
]

WEIGHTS = [
    ("missing", lambda m: (m / "model.safetensors").unlink(), []),
    ("empty", text("model.safetensors", b""), []),
    ("seven bytes", text("model.safetensors", b"1234567"), []),
    ("header of 2^63 bytes", size_field(2**63), ["header"]),
    ("header of 101 MB", size_field(101_000_000), ["header"]),
    ("header longer than the file", size_field(1_000_000), ["header"]),
    ("header of nothing", size_field(0), ["header"]),
    ("header not JSON", header(lambda _: b'{"a": '), ["header"]),
    ("header a list", header(lambda _: []), ["header"]),
    ("data cut short", header(lambda _: None, keep=1000), []),
    ("tensor missing", header(rename_tensor), ["model.norm.w"]),
    ("tensor named twice", header(lambda parsed: json.dumps(parsed).replace("model.layers.0.", "model.layers.1.").encode()),
     ["twice"]),
    ("unknown dtype", tensor(dtype="F7"), ["model.norm.weight", "F7"]),
    ("dtype of another size", tensor(dtype="F32"), ["model.norm.weight"]),
    ("shape negative", tensor(shape=[-64]), ["model.norm.weight", "shape"]),
    ("shape overflows", tensor(shape=[2**40, 2**40]), ["model.norm.weight", "shape"]),
    ("shape a string", tensor(shape="64"), ["model.norm.weight", "shape"]),
    ("shape of another model", tensor(shape=[8, 8]), ["model.norm.weight"]),
    ("offsets backwards", tensor(data_offsets=[128, 0]), ["model.norm.weight", "data_offsets"]),
    ("offsets past the end", tensor(data_offsets=[2**50, 2**50 + 128]), ["model.norm.weight"]),
    ("offsets overlap", tensor(data_offsets=[0, 128]), ["data begins"]),
    ("one offset", tensor(data_offsets=[0]), ["model.norm.weight", "data_offsets"]),
    ("field unknown", tensor(colour="red"), ["model.norm.weight", "colour"]),
]

SHARDS = [
    ("index not JSON", text(INDEX, "{"), []),
    ("index without weight_map", index(lambda c: {}), ["weight_map"]),
    ("weight_map a list", index(lambda c: {"weight_map": []}), ["weight_map"]),
    ("shard missing", mapped_to("model-00009-of-00009.safetensors"), ["model-00009-of-00009.safetensors"]),
    ("shard outside", mapped_to("../model.safetensors"), ["weight_map", "same directory"]),
    ("shard at an absolute path", mapped_to("/etc/passwd"), ["weight_map", "same directory"]),
    ("shard a number", mapped_to(5), ["weight_map"]),
]


def refused(model, *command):
    prompt = model / "prompt.jsonl"
    prompt.write_text('{"prompt_ids": [1, 2], "max_tokens": 1}\n')
    arguments = command or ("generate", "--prompts", prompt, "--max-model-len", 64, "--max-num-seqs", 1)
    done = subprocess.run([str(BIN / "refrain"), arguments[0], "--model", str(model), *map(str, arguments[1:])],
                          capture_output=True, text=True, timeout=within(60))
    assert done.returncode == 64, (done.returncode, done.stdout, done.stderr[-2000:])
    assert done.stdout == ""
    return done.stderr


def cases(name, source, breakages):
    return [pytest.param(name, source, breakage, words, id=f"{name}-{what}".replace(" ", "_"))
            for what, breakage, words in breakages]


@pytest.mark.parametrize("name, source, breakage, words", [
    *cases("config.json", "qwen3", CONFIG), *cases("tokenizer.json", "qwen3", TOKENIZER),
    *cases("model.safetensors", "qwen3", WEIGHTS), *cases("safetensors", "llama-sharded", SHARDS)])
def test_a_broken_model_is_refused_and_named(copy_model, name, source, breakage, words):
    model = copy_model(TINY / source)
    breakage(model)
    error = refused(model)
    for word in [name, *words]:
        assert word in error, error[-2000:]


@pytest.mark.parametrize("source, words", [
    ("{% for m in messages %}", ["endfor"]), ("{{ " + "(" * 10_000, ["line 1"]), ("{{ messages | }}", ["line 1"]),
    (7, ["string"])])
def test_a_broken_chat_template_is_refused_and_named(copy_model, source, words):
    model = copy_model(TINY / "qwen3")
    fields("tokenizer_config.json", chat_template=source)(model)
    error = refused(model, "serve", "--port", free_port(), "--max-model-len", 64)
    for word in ["chat_template", *words]:
        assert word in error, error[-2000:]
    assert not re.search(r"ready|listening", error)
