"""Random bfloat16 checkpoints with the head geometry of models that are served, and small otherwise. Needs numpy alone."""
import json
from dataclasses import dataclass
from pathlib import Path

import numpy

from drills.workload import made_up_tokenizer


@dataclass(frozen=True)
class Shape:
    family: str          # llama, qwen3
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int = 256
    inner: int = 384
    layers: int = 3
    vocab: int = 1024
    seed: int = 31


# Heads of 64 and 128, 2 and 8 KV heads, 4 and 8 query heads to each of them.
SHAPES = {
    "kv2-of-64": Shape("llama", 8, 2, 64),
    "kv8-of-64": Shape("llama", 64, 8, 64, layers=2),
    "kv2-of-128": Shape("llama", 16, 2, 128),
    "kv8-of-128": Shape("qwen3", 32, 8, 128, layers=2),
}


def to_bfloat16(values):
    """Bits of the nearest bfloat16, ties to even."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def write_safetensors(path, tensors):
    """{name: float32 array} stored as bfloat16."""
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, offset + 2 * values.size]}
        offset += 2 * values.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(to_bfloat16(values).tobytes())


def config_of(shape):
    return {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[shape.family]],
        "model_type": shape.family, "hidden_act": "silu", "vocab_size": shape.vocab, "hidden_size": shape.hidden,
        "intermediate_size": shape.inner, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": None, "attention_bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }


def tensors_of(shape):
    """About unit gain and sharp attention, so that a wrong key shows, and logits of standard deviation 2.5."""
    random = numpy.random.default_rng(shape.seed)
    hidden, width, kv_width = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(rows, cols, gain):
        return random.standard_normal((rows, cols), numpy.float32) * numpy.float32(gain / cols ** 0.5)

    def norm(size):
        return 1 + numpy.float32(0.25) * random.standard_normal(size, numpy.float32)
    tensors = {"model.embed_tokens.weight": random.standard_normal((shape.vocab, hidden), numpy.float32)}
    for layer in range(shape.layers):
        scope = f"model.layers.{layer}."
        tensors[scope + "input_layernorm.weight"] = norm(hidden)
        tensors[scope + "self_attn.q_proj.weight"] = matrix(width, hidden, 1.5)
        tensors[scope + "self_attn.k_proj.weight"] = matrix(kv_width, hidden, 1.5)
        tensors[scope + "self_attn.v_proj.weight"] = matrix(kv_width, hidden, 1.5)
        if shape.family == "qwen3":
            tensors[scope + "self_attn.q_norm.weight"] = norm(shape.head_dim)
            tensors[scope + "self_attn.k_norm.weight"] = norm(shape.head_dim)
        tensors[scope + "self_attn.o_proj.weight"] = matrix(hidden, width, 1.5)
        tensors[scope + "post_attention_layernorm.weight"] = norm(hidden)
        tensors[scope + "mlp.gate_proj.weight"] = matrix(shape.inner, hidden, 1.0)
        tensors[scope + "mlp.up_proj.weight"] = matrix(shape.inner, hidden, 1.0)
        tensors[scope + "mlp.down_proj.weight"] = matrix(hidden, shape.inner, 1.5)
    tensors["model.norm.weight"] = norm(hidden)
    tensors["lm_head.weight"] = matrix(shape.vocab, hidden, 2.5)
    return tensors


def make(folder, shape):
    """A model directory; token N is the text " tN" (drills.workload.made_up_tokenizer)."""
    folder = Path(folder)
    made_up_tokenizer(folder, shape.vocab)
    write_safetensors(folder / "model.safetensors", tensors_of(shape))
    (folder / "config.json").write_text(json.dumps(config_of(shape), indent=1))
    return folder


def with_made_up_tokenizer(folder, model):
    """A trained model's weights and configuration with such a tokenizer: the text of an answer then tells its token ids."""
    model = Path(model).resolve()
    made_up_tokenizer(folder, json.loads((model / "config.json").read_text())["vocab_size"])
    for path in [model / "config.json", *model.glob("*.safetensors*")]:
        (Path(folder) / path.name).symlink_to(path)
    return Path(folder)
