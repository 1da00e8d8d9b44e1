#!/usr/bin/env python3
"""Writes tests/fixtures/adapters: adapters that PEFT saved, with the greedy tokens that transformers computes after PEFT merged them.

Run by hand in a throw-away environment when an adapter is added or changed; the results are committed:
    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers peft
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 /tmp/oracle/bin/python tools/make_peft_golden.py
Everything is computed in float32. Tokens of the merged checkpoint must be those of the adapter beside its model, else nothing is
written.
"""
import json
import shutil
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests" / "fixtures" / "models" / "llama-bias-f32"
OUT = ROOT / "tests" / "fixtures" / "adapters"
NEW_TOKENS = 24
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name: (fields of LoraConfig, seed). Each row covers what the others do not.
ADAPTERS = {
    "linears": ({"r": 8, "lora_alpha": 16, "target_modules": LINEARS}, 31),
    "rslora-one-layer": ({"r": 16, "lora_alpha": 4, "use_rslora": True, "target_modules": ["q_proj", "v_proj", "down_proj"],
                           "layers_to_transform": [1]}, 32),
    "embeddings": ({"r": 8, "lora_alpha": 8, "target_modules": [*LINEARS[:4], "embed_tokens", "lm_head"]}, 33),
}


def load():
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


def randomise(model, seed):
    """PEFT begins with B = 0; here an adapter's part is about as large as its weight's."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                scale = 0.35 if "lora_B" in name or "embedding_A" in name else parameter.shape[-1] ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


@torch.no_grad()
def greedy(model, ids):
    tokens, margins = list(ids), []
    for _ in range(NEW_TOKENS):
        best = torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1].double(), -1).topk(2)
        margins.append(round(float(best.values[0] - best.values[1]), 4))
        tokens.append(int(best.indices[0]))
    return tokens[len(ids):], margins


def make(name, fields, seed, prompts):
    adapted = peft.get_peft_model(load(), peft.LoraConfig(task_type="CAUSAL_LM", **fields)).eval()
    randomise(adapted, seed)
    folder = OUT / name
    if folder.exists():
        shutil.rmtree(folder)
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink()
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(weights, folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = MODEL.name
    config["target_modules"] = sorted(config["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    beside = [greedy(adapted, ids)[0] for ids in prompts]
    merged = adapted.merge_and_unload()
    entries = []
    for ids, unmerged in zip(prompts, beside):
        tokens, margins = greedy(merged, ids)
        assert tokens == unmerged, f"{name}: merged and not merged give other tokens"
        entries.append({"prompt_ids": ids, "output_ids": tokens, "margins": margins})
    base = [greedy(load(), ids)[0] for ids in prompts]
    assert all(entry["output_ids"] != tokens for entry, tokens in zip(entries, base)), f"{name} changes nothing"
    (folder / "expected.json").write_text(
        "[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n", encoding="utf-8")
    print(name, "smallest margin", min(min(entry["margins"]) for entry in entries), sorted(weights)[:3])


def main():
    prompts = [[5, 7, 9, 11], [17] * 20 + [3, 5, 8], list(range(20, 120))]
    for name, (fields, seed) in ADAPTERS.items():
        make(name, fields, seed, prompts)


if __name__ == "__main__":
    main()
