"""Writes EAGLE and EAGLE-3 heads with made-up weights for a model, as they are published: names, shapes, config.json."""
import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def shapes_of(config, method, vocabulary):
    """tensor -> shape, of one layer"""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    eagle3 = method == "eagle3"
    layer, width = ("midlayer", 2 * hidden) if eagle3 else ("layers.0", hidden)
    shapes = {"fc.weight": [hidden, (3 if eagle3 else 2) * hidden],
              f"{layer}.self_attn.q_proj.weight": [queries, width], f"{layer}.self_attn.k_proj.weight": [keys, width],
              f"{layer}.self_attn.v_proj.weight": [keys, width], f"{layer}.self_attn.o_proj.weight": [hidden, queries],
              f"{layer}.post_attention_layernorm.weight": [hidden], f"{layer}.mlp.gate_proj.weight": [inner, hidden],
              f"{layer}.mlp.up_proj.weight": [inner, hidden], f"{layer}.mlp.down_proj.weight": [hidden, inner]}
    if eagle3:
        shapes |= {"midlayer.hidden_norm.weight": [hidden], "midlayer.input_layernorm.weight": [hidden],
                   "norm.weight": [hidden], "lm_head.weight": [vocabulary, hidden]}
    return shapes


def write_head(directory, model, method, vocabulary=96, seed=5, without=None, **changes):
    """`changes` are of config.json alone, after the tensors were made."""
    directory = Path(directory)
    of_model = json.loads((Path(model) / "config.json").read_text())
    heads = of_model["num_attention_heads"]
    config = {key: of_model[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size",
                                             "rms_norm_eps", "max_position_embeddings")}
    config |= {"architectures": ["LlamaForCausalLMEagle3" if method == "eagle3" else "LlamaForCausalLM"],
               "model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu", "torch_dtype": "float32",
               "num_key_value_heads": of_model.get("num_key_value_heads", heads),
               "head_dim": of_model.get("head_dim", of_model["hidden_size"] // heads), "rope_theta": 10000.0}
    draw = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes_of(config, method, vocabulary).items():
        noise = draw.standard_normal(shape, dtype=np.float32)
        tensors[name] = 1 + 0.1 * noise if len(shape) == 1 else noise / np.sqrt(np.float32(shape[1]))
    if method == "eagle3":
        targets = np.sort(draw.permutation(config["vocab_size"])[:vocabulary])
        tensors["d2t"] = targets - np.arange(vocabulary)
        tensors["t2d"] = np.isin(np.arange(config["vocab_size"]), targets)
        layers = of_model["num_hidden_layers"]
        config |= {"draft_vocab_size": vocabulary, "eagle_aux_hidden_state_layer_ids": [0, layers // 2, layers - 1]}
    tensors.pop(without, None)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config | changes, indent=1))
    save_file(tensors, str(directory / "model.safetensors"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="directory of the model that the head is for")
    parser.add_argument("directory", help="where the head goes")
    parser.add_argument("--method", choices=["eagle", "eagle3"], default="eagle3")
    arguments = parser.parse_args()
    write_head(arguments.directory, arguments.model, arguments.method)
