"""Llama and Qwen3 in numpy, teacher-forced: log-probabilities of every next token, in float32 or rounded to bfloat16 after
each op. It shares no code with what it judges."""
import json
from pathlib import Path

import numpy

TOKENS_AT_ONCE = 2048


def read_safetensors(path):
    data = numpy.memmap(path, numpy.uint8, "r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:8 + length].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            values = (raw.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
        elif entry["dtype"] == "F32":
            values = raw.view(numpy.float32)
        else:
            raise ValueError(f"{path}: {name} is {entry['dtype']}, not BF16 or F32")
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def rounded(values):
    """To bfloat16 and back, ties to even."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(numpy.float32)


def exact(values):
    return values


class Reference:
    def __init__(self, folder, bfloat16=False):
        self.config = json.loads((Path(folder) / "config.json").read_text())
        self.weights = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            self.weights |= read_safetensors(path)
        self.round = rounded if bfloat16 else exact
        if self.config.get("rope_scaling"):
            raise ValueError("this reference has plain rotary embeddings only")
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.dim = self.config.get("head_dim") or self.config["hidden_size"] // self.heads

    def norm(self, x, name):
        scale = numpy.reciprocal(numpy.sqrt(numpy.mean(x * x, -1, keepdims=True) + self.config["rms_norm_eps"]))
        return self.round(x * scale * self.weights[name])

    def linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return self.round(y if bias is None else y + bias)

    def rope(self, x, positions):
        half = self.dim // 2
        frequencies = 1.0 / numpy.float64(self.config["rope_theta"]) ** (numpy.arange(half) / half)
        angles = positions[:, None, None] * frequencies
        cos, sin = numpy.cos(angles).astype(numpy.float32), numpy.sin(angles).astype(numpy.float32)
        a, b = x[..., :half], x[..., half:]
        return self.round(numpy.concatenate([a * cos - b * sin, b * cos + a * sin], -1))

    def attention(self, q, k, v):
        """Of one sequence: q [T, heads, dim], k and v [T, kv heads, dim]."""
        length, group = len(q), self.heads // self.kv_heads
        q = q.reshape(length, self.kv_heads, group, self.dim).transpose(1, 2, 0, 3).reshape(self.kv_heads, -1, self.dim)
        scores = (q @ k.transpose(1, 2, 0)).reshape(self.kv_heads, group, length, length)
        scores *= numpy.float32(self.dim ** -0.5)
        scores += numpy.triu(numpy.full((length, length), -numpy.inf, numpy.float32), 1)
        scores -= scores.max(-1, keepdims=True)
        numpy.exp(scores, scores)
        total = scores.sum(-1, keepdims=True)
        out = (scores.reshape(self.kv_heads, -1, length) @ v.transpose(1, 0, 2)).reshape(self.kv_heads, group, length, self.dim)
        return self.round((out / total).transpose(2, 0, 1, 3).reshape(length, -1))

    def hidden(self, sequences):
        """The last hidden states of several sequences, one after the other: [sum of lengths, H]."""
        positions = numpy.concatenate([numpy.arange(len(ids), dtype=numpy.float64) for ids in sequences])
        ends = numpy.cumsum([len(ids) for ids in sequences])[:-1]
        x = self.weights["model.embed_tokens.weight"][numpy.concatenate(sequences)]
        for layer in range(self.config["num_hidden_layers"]):
            scope = f"model.layers.{layer}."
            y = self.norm(x, scope + "input_layernorm.weight")
            q = self.linear(y, scope + "self_attn.q_proj").reshape(-1, self.heads, self.dim)
            k = self.linear(y, scope + "self_attn.k_proj").reshape(-1, self.kv_heads, self.dim)
            v = self.linear(y, scope + "self_attn.v_proj").reshape(-1, self.kv_heads, self.dim)
            if scope + "self_attn.q_norm.weight" in self.weights:
                q = self.norm(q, scope + "self_attn.q_norm.weight")
                k = self.norm(k, scope + "self_attn.k_norm.weight")
            q, k = self.rope(q, positions), self.rope(k, positions)
            y = numpy.concatenate([self.attention(*of) for of in zip(*(numpy.split(part, ends) for part in (q, k, v)))])
            x = self.round(x + self.linear(y, scope + "self_attn.o_proj"))
            y = self.norm(x, scope + "post_attention_layernorm.weight")
            gate, up = self.linear(y, scope + "mlp.gate_proj"), self.linear(y, scope + "mlp.up_proj")
            y = self.round(gate / (1 + numpy.exp(-gate)) * up)
            x = self.round(x + self.linear(y, scope + "mlp.down_proj"))
        return self.norm(x, "model.norm.weight")

    def logprobs(self, pairs):
        """For each (prompt ids, output ids): log-probabilities before each output token, [outputs, V]. One at a time, in
        order."""
        for group in groups_of(pairs):
            states = self.hidden([numpy.array(prompt + output[:-1]) for prompt, output in group])
            begin = 0
            for prompt, output in group:
                first = begin + len(prompt) - 1
                begin += len(prompt) + len(output) - 1
                yield self.log_softmax(states[first:begin])

    def log_softmax(self, states):
        head = self.weights.get("lm_head.weight")
        logits = states @ (self.weights["model.embed_tokens.weight"] if head is None else head).T
        logits -= logits.max(-1, keepdims=True)
        return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))


def groups_of(pairs):
    """Runs of pairs with about TOKENS_AT_ONCE tokens: large matrix products, little memory."""
    group, tokens = [], 0
    for prompt, output in pairs:
        group.append((prompt, output))
        tokens += len(prompt) + len(output)
        if tokens >= TOKENS_AT_ONCE:
            yield group
            group, tokens = [], 0
    if group:
        yield group
