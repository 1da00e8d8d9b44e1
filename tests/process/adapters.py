"""Random PEFT adapters of a model directory, and copies of the model with one merged into its weights."""
import json
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head", "embed_tokens")


def write_adapter(folder, model, seed, rank=8, alpha=16, targets=TARGETS, rslora=False, strength=0.8, dtype=np.float32):
    """A PEFT directory; matrices of the size of the model's float32 weights."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.rsplit(".", 1)[-1] not in targets or weight.ndim != 2:
            continue
        rows, cols = weight.shape
        size = strength * float(np.abs(weight).mean())
        a = rng.standard_normal((rank, cols)).astype(np.float32) / np.sqrt(rank)
        b = rng.standard_normal((rows, rank)).astype(np.float32) * size * rank / alpha
        if module.endswith("embed_tokens"):  # the weight has a row for each token, A a column
            tensors[f"base_model.model.{module}.lora_embedding_A"] = np.ascontiguousarray(b.T).astype(dtype)
            tensors[f"base_model.model.{module}.lora_embedding_B"] = np.ascontiguousarray(a.T).astype(dtype)
        else:
            tensors[f"base_model.model.{module}.lora_A.weight"] = a.astype(dtype)
            tensors[f"base_model.model.{module}.lora_B.weight"] = b.astype(dtype)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": rslora, "use_dora": False, "bias": "none",
        "modules_to_save": None, "target_modules": list(targets), "base_model_name_or_path": str(model)}))
    return folder


def merge(folder, model, into):
    """W + scale * B * A, the scale as PEFT defines it."""
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / (np.sqrt(config["r"]) if config["use_rslora"] else config["r"])
    adapter = load_file(folder / "adapter_model.safetensors")
    shutil.copytree(model, into)
    weights = load_file(model / "model.safetensors")
    for name, a in adapter.items():
        module, _, leaf = name.removeprefix("base_model.model.").partition(".lora_")
        if leaf not in ("A.weight", "embedding_A"):
            continue
        change = scale * adapter[name.replace("_A", "_B")].astype(np.float64) @ a.astype(np.float64)
        target = module + ".weight"
        weights[target] = (weights[target] + (change.T if leaf == "embedding_A" else change)).astype(np.float32)
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    return into
