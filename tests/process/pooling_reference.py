"""Qwen3 checkpoints of random float32 weights as Qwen3-Embedding's are laid out, and their hidden states by numpy."""
import json

import numpy as np
from conftest import TINY
from safetensors.numpy import save_file

EOS = 2
CONFIG = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0}
POOLING_MODES = {"LAST": "pooling_mode_lasttoken", "MEAN": "pooling_mode_mean_tokens", "CLS": "pooling_mode_cls_token"}


def random_weights(seed):
    rng = np.random.default_rng(seed)
    h, inner, heads = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    q, kv = CONFIG["num_attention_heads"] * heads, CONFIG["num_key_value_heads"] * heads

    def matrix(rows, cols, gain=2.0):
        return (gain * rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)

    def norm(size):
        return (1 + 0.25 * rng.standard_normal(size)).astype(np.float32)

    weights = {"embed_tokens.weight": matrix(CONFIG["vocab_size"], h, 4.0), "norm.weight": norm(h)}
    for layer in range(CONFIG["num_hidden_layers"]):
        scope = f"layers.{layer}."
        weights |= {scope + "input_layernorm.weight": norm(h), scope + "post_attention_layernorm.weight": norm(h),
                    scope + "self_attn.q_proj.weight": matrix(q, h), scope + "self_attn.k_proj.weight": matrix(kv, h),
                    scope + "self_attn.v_proj.weight": matrix(kv, h), scope + "self_attn.o_proj.weight": matrix(h, q),
                    scope + "self_attn.q_norm.weight": norm(heads), scope + "self_attn.k_norm.weight": norm(heads),
                    scope + "mlp.gate_proj.weight": matrix(inner, h), scope + "mlp.up_proj.weight": matrix(inner, h),
                    scope + "mlp.down_proj.weight": matrix(h, inner)}
    return weights


def write_model(folder, seed=1, architecture="Qwen3ForCausalLM", modules=None, **config):
    """A model folder whose tensors have no "model." in front and no lm_head, and whose tokenizer ends texts with EOS.
    `modules`: (pooling, normalize) of a sentence-transformers folder."""
    folder.mkdir()
    weights = random_weights(seed)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG | {
        "architectures": [architecture], "model_type": "qwen3", "hidden_act": "silu", "max_position_embeddings": 512,
        "eos_token_id": EOS, "tie_word_embeddings": True, "torch_dtype": "float32"} | config))
    tokenizer = json.loads((TINY / "qwen3/tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "pair": [], "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                                             {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}],
        "special_tokens": {"<|im_end|>": {"id": "<|im_end|>", "ids": [EOS], "tokens": ["<|im_end|>"]}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if modules:
        pooling, normalize = modules
        parts = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")] + [("2", "2_Normalize", "Normalize")] * normalize
        (folder / "modules.json").write_text(json.dumps(
            [{"idx": int(name), "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
             for name, path, kind in parts]))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(
            {"word_embedding_dimension": CONFIG["hidden_size"]} | {mode: name == pooling for name, mode in POOLING_MODES.items()}))
    return weights


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG["rms_norm_eps"]) * weight


def rope(x):
    """x: [tokens, heads, head_dim]"""
    half = x.shape[-1] // 2
    frequencies = CONFIG["rope_theta"] ** (-np.arange(half) / half)
    angles = np.arange(len(x))[:, None, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


def hidden_states(weights, tokens):
    """After the final norm, of every token: [tokens, hidden_size], in double precision."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    count, size = len(tokens), CONFIG["head_dim"]
    group = CONFIG["num_attention_heads"] // CONFIG["num_key_value_heads"]
    hidden = w["embed_tokens.weight"][list(tokens)]
    future = np.triu(np.full((count, count), -np.inf), 1)
    for layer in range(CONFIG["num_hidden_layers"]):
        def part(name, x, scope=f"layers.{layer}."):
            return x @ w[f"{scope}{name}.weight"].T
        normed = rms_norm(hidden, w[f"layers.{layer}.input_layernorm.weight"])
        q, k, v = (part(f"self_attn.{name}_proj", normed).reshape(count, -1, size) for name in "qkv")
        q = rope(rms_norm(q, w[f"layers.{layer}.self_attn.q_norm.weight"]))
        k = np.repeat(rope(rms_norm(k, w[f"layers.{layer}.self_attn.k_norm.weight"])), group, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + future
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", shares, np.repeat(v, group, 1)).reshape(count, -1)
        hidden = hidden + part("self_attn.o_proj", attended)
        normed = rms_norm(hidden, w[f"layers.{layer}.post_attention_layernorm.weight"])
        gate = part("mlp.gate_proj", normed)
        hidden = hidden + part("mlp.down_proj", gate / (1 + np.exp(-gate)) * part("mlp.up_proj", normed))
    return rms_norm(hidden, w["norm.weight"])


def pool(weights, tokens, pooling="LAST"):
    states = hidden_states(weights, tokens)
    return {"LAST": states[-1], "MEAN": states.mean(0), "CLS": states[0]}[pooling]


def normalized(vector):
    return vector / np.linalg.norm(vector)
