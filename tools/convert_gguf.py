#!/usr/bin/env python3
"""Turns a llama-architecture GGUF file into a Hugging Face model directory, without PyTorch.

Every tensor is dequantised to float32 and rounded to bfloat16 (nearest, ties to even); query and key
rows are put back in Hugging Face order. The output is the same byte for byte on every machine.

    tools/convert_gguf.py model.gguf build/models/NAME
"""
import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

SPECIAL = 3  # tokenizer.ggml.token_type of a control token

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class BadModel(Exception):
    """The input is not what this converter can read; the text says which part and why."""


class Metadata:
    """The GGUF key-value fields, with an error that names the key when one is missing."""

    def __init__(self, reader, path):
        self._fields = reader.fields
        self._path = path

    def get(self, key, default=None):
        field = self._fields.get(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise BadModel(f"{self._path}: the metadata key '{key}' is missing")
        return default


def hugging_face_name(name):
    """'blk.3.attn_q.weight' -> 'model.layers.3.self_attn.q_proj.weight'."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in TOP_NAMES:
        return f"{TOP_NAMES[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise BadModel(f"tensor '{name}' has no known Hugging Face name")


def unpermute(rows, heads):
    """Undoes the rotary interleaving of the GGUF format. rows: [heads * d, in] -> the same shape."""
    d = rows.shape[0] // heads
    return rows.reshape(heads, d // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def to_bfloat16(values, name):
    """float32 array -> uint16 bit patterns, rounded to nearest, ties to even."""
    if not np.isfinite(values).all():
        raise BadModel(f"tensor '{name}' holds a value that is not finite")
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounding = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return ((bits + rounding) >> 16).astype("<u2")


def safetensors_header(entries):
    """entries: [(name, shape)] of bfloat16 tensors in file order -> the header bytes."""
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in entries:
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_weights(reader, meta, path):
    """Streams every tensor into one safetensors file, sorted by name; one tensor in memory at a time."""
    heads = {"attn_q": meta.get("llama.attention.head_count"),
             "attn_k": meta.get("llama.attention.head_count_kv")}
    tensors = sorted(((hugging_face_name(t.name), t) for t in reader.tensors), key=lambda p: p[0])
    # GGUF lists the innermost dimension first.
    entries = [(name, [int(n) for n in reversed(t.shape)]) for name, t in tensors]
    with open(path, "wb") as out:
        out.write(safetensors_header(entries))
        for number, ((name, t), (_, shape)) in enumerate(zip(tensors, entries), 1):
            values = dequantize(t.data, t.tensor_type).reshape(shape)
            kind = t.name.split(".")[2] if t.name.startswith("blk.") else ""
            if kind in heads:
                values = unpermute(values, heads[kind])
            out.write(to_bfloat16(values, name).tobytes())
            report(number, len(tensors))
        out.flush()
        os.fsync(out.fileno())
    return {name for name, _ in entries}


def report(done, total):
    """One line that rewrites itself on a terminal; a few lines in a log."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r  converting tensor {done}/{total}", end=end, file=sys.stderr, flush=True)
    elif done == total or done % 100 == 0:
        print(f"  converting tensor {done}/{total}", file=sys.stderr, flush=True)


def model_config(meta, names):
    hidden = meta.get("llama.embedding_length")
    heads = meta.get("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "head_dim": meta.get("llama.rope.dimension_count", hidden // heads),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": meta.get("llama.feed_forward_length"),
        "max_position_embeddings": meta.get("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": meta.get("llama.block_count"),
        "num_key_value_heads": meta.get("llama.attention.head_count_kv"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        # Stored as float32: the nearest short decimal is the value that was meant.
        "rms_norm_eps": float(f"{meta.get('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_scaling": None,
        "rope_theta": meta.get("llama.rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in names,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": meta.get("llama.vocab_size"),
    }


def special_tokens(meta):
    """[(id, text)] of the control tokens."""
    tokens = meta.get("tokenizer.ggml.tokens")
    kinds = meta.get("tokenizer.ggml.token_type")
    return [(i, tokens[i]) for i, kind in enumerate(kinds) if kind == SPECIAL]


def added_token(text):
    return {"content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}


def tokenizer(meta):
    """A byte-level BPE tokenizer.json with the 'smollm' pre-tokeniser (single digits, then GPT-2's split)."""
    if meta.get("tokenizer.ggml.model") != "gpt2" or meta.get("tokenizer.ggml.pre") != "smollm":
        raise BadModel("only the 'gpt2' tokenizer with the 'smollm' pre-tokenizer can be converted, not "
                       f"'{meta.get('tokenizer.ggml.model')}' with '{meta.get('tokenizer.ggml.pre')}'")
    tokens = meta.get("tokenizer.ggml.tokens")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **added_token(text)} for i, text in special_tokens(meta)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in meta.get("tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(meta):
    tokens = meta.get("tokenizer.ggml.tokens")
    return {
        "add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": bool(meta.get("tokenizer.ggml.add_space_prefix", False)),
        "added_tokens_decoder": {str(i): added_token(text) for i, text in special_tokens(meta)},
        "bos_token": tokens[meta.get("tokenizer.ggml.bos_token_id")],
        "chat_template": meta.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[meta.get("tokenizer.ggml.eos_token_id")],
        "model_max_length": meta.get("llama.context_length"),
        "pad_token": tokens[meta.get("tokenizer.ggml.padding_token_id")],
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": tokens[meta.get("tokenizer.ggml.unknown_token_id")],
    }


def generation_config(meta):
    return {"bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": meta.get("tokenizer.ggml.padding_token_id")}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(source, target):
    """Writes the whole directory beside its final name, then renames: a partial result is never seen."""
    try:
        reader = GGUFReader(source)
    except (ValueError, OSError, IndexError) as error:
        raise BadModel(f"{source} is not a readable GGUF file: {error}") from error
    meta = Metadata(reader, source)
    architecture = meta.get("general.architecture")
    if architecture != "llama":
        raise BadModel(f"{source} holds a '{architecture}' model; only 'llama' can be converted")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    names = write_weights(reader, meta, partial / "model.safetensors")
    write_json(partial / "config.json", model_config(meta, names))
    write_json(partial / "generation_config.json", generation_config(meta))
    write_json(partial / "tokenizer.json", tokenizer(meta))
    write_json(partial / "tokenizer_config.json", tokenizer_config(meta))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the .gguf file")
    parser.add_argument("target", type=Path, help="the directory to write (replaced if it exists)")
    arguments = parser.parse_args()
    try:
        convert(arguments.source, arguments.target)
    except BadModel as error:
        print(f"convert_gguf: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
