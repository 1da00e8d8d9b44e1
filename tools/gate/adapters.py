"""LoRA adapters on a checkpoint of the gate, and that checkpoint with one of them merged, by which its answers are judged."""
import json
from pathlib import Path

from safetensors.numpy import load_file, save_file

from gate.reference import read_safetensors
from made_up_adapters import write_adapters

RANK, SCALE = 16, 8.0   # so strong that the answers of another adapter, or of none, are far from the best


def make(folder, model, count):
    """The folders of `count` adapters, each with tensors of its own."""
    Path(folder).mkdir(parents=True)
    return write_adapters(Path(folder), json.loads((model / "config.json").read_text()), count, RANK, scale=SCALE, apart=True)


def merged(folder, model, adapter):
    """A float32 checkpoint of W + alpha / rank * B A."""
    weights = {name: values for path in sorted(model.glob("*.safetensors")) for name, values in read_safetensors(path).items()}
    scale = json.loads((adapter / "adapter_config.json").read_text())["lora_alpha"] / RANK
    tensors = {name: values.astype("float32") for name, values in load_file(adapter / "adapter_model.safetensors").items()}
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            b = tensors[name.replace(".lora_A.", ".lora_B.")]
            weight = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            weights[weight] = weights[weight] + scale * (b @ a)
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text((model / "config.json").read_text())
    return folder
