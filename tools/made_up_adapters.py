"""LoRA adapters in PEFT's form with made-up weights of a model's shapes, for measurements and drills."""
import json

import numpy as np
from safetensors.numpy import save_file


def random_tensors(config, rank, embeddings=False, seed=7):
    """Tensors (float16) of an adapter on q, k, v, o, gate, up and down, and if asked for on embed_tokens and lm_head."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", config["num_attention_heads"])
    dim = config.get("head_dim") or hidden // heads
    shapes = {"self_attn.q_proj": (heads * dim, hidden), "self_attn.k_proj": (kv_heads * dim, hidden),
              "self_attn.v_proj": (kv_heads * dim, hidden), "self_attn.o_proj": (hidden, heads * dim),
              "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    rng = np.random.default_rng(seed)
    tensors = {}

    def add(name, shape, scale):
        tensors["base_model.model." + name] = (rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)).astype(np.float16)

    for layer in range(config["num_hidden_layers"]):
        for module, (rows, cols) in shapes.items():
            name = f"model.layers.{layer}.{module}"
            add(f"{name}.lora_A.weight", (rank, cols), cols ** -0.5)
            add(f"{name}.lora_B.weight", (rows, rank), 0.01)
    if embeddings:
        vocab = config["vocab_size"]
        add("model.embed_tokens.lora_embedding_A", (rank, vocab), 0.01)
        add("model.embed_tokens.lora_embedding_B", (hidden, rank), 0.01)
        add("lm_head.lora_A.weight", (rank, hidden), 0.01)
        add("lm_head.lora_B.weight", (vocab, rank), 0.01)
    return tensors


def write_adapters(folder, config, count, rank, embeddings=False, scale=1.0, apart=False):
    """`count` folders adapter0 … below `folder`; their paths. They differ by their scale alone, since an 8B's tensors of rank 16
    are 84 MB and random numbers take longer than files; `apart`: each has numbers of its own, and so says something else."""
    tensors, paths = random_tensors(config, rank, embeddings), []
    for number in range(count):
        path = folder / f"adapter{number}"
        path.mkdir()
        if apart and number:
            tensors = random_tensors(config, rank, embeddings, 7 + number)
        save_file(tensors, path / "adapter_model.safetensors")
        alpha = rank * scale * (1 + number / 8)
        (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": alpha}))
        paths.append(path)
    return paths


def serve_options(paths, rank, places=None):
    """What makes refrain serve know them all, `places` of them at a time (default: all)."""
    return ["--enable-lora", "--max-loras", places or len(paths), "--max-lora-rank", rank, "--lora-modules",
            *(f"{path.name}={path}" for path in paths)]
