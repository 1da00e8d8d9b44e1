#!/usr/bin/env python3
"""Writes tests/fixtures/models: seeded random checkpoints of 0.2-0.5 MB with transformers' greedy tokens.

Run by hand in a throw-away environment when a fixture is added or changed; the results are committed:
    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 /tmp/oracle/bin/python tools/make_tiny_models.py
Weights are stored as each model's `dtype` says and computed in float32; see tests/fixtures/models/README.md.
"""
import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent
EOS = 2
NEW_TOKENS = 32
PROMPT_LENGTHS = [1, 5, 17, 64, 130, 300]
COMMON = {
    "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0,
    "vocab_size": 512,
}
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

# name: (architecture, config on top of COMMON, weight dtype, shard size or None, seed). Each row covers what the
# others do not; tests/fixtures/models/README.md says what.
MODELS = {
    "llama-sharded": ("Llama", {"num_hidden_layers": 3, "tie_word_embeddings": True}, "bfloat16", "80KB", 11),
    "llama3-rope": ("Llama", {"num_hidden_layers": 2, "vocab_size": 515, "tie_word_embeddings": False,
                              "rope_parameters": LLAMA3_ROPE}, "bfloat16", None, 12),
    "llama-bias-f32": ("Llama", {"num_hidden_layers": 2, "hidden_size": 96, "attention_bias": True, "head_dim": 24,
                                 "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 128,
                                 "tie_word_embeddings": False}, "float32", None, 13),
    "qwen2": ("Qwen2", {"num_hidden_layers": 2, "tie_word_embeddings": True}, "bfloat16", None, 14),
    "qwen3": ("Qwen3", {"num_hidden_layers": 2, "head_dim": 32, "intermediate_size": 128,
                        "tie_word_embeddings": False}, "bfloat16", None, 15),
}


def randomise(model, seed):
    """Normal weights of about unit gain, norms around one, biases that matter: outputs vary, margins are wide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1.0 + 0.25 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.5 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(2.0 * noise / parameter.shape[-1] ** 0.5)


def prompts(vocab, seed):
    generator = torch.Generator().manual_seed(1000 + seed)
    return [torch.randint(3, min(vocab, 512), (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]


@torch.no_grad()
def greedy(model, prompt_ids):
    """One golden entry: the tokens, each step's log-probability gap from first to second, the first step's top 5."""
    ids, margins, top5 = list(prompt_ids), [], None
    while len(margins) < NEW_TOKENS:
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].float(), dim=-1)
        values, indices = logprobs.topk(5)
        top5 = top5 or [[int(i), round(float(v), 4)] for i, v in zip(indices, values)]
        margins.append(round(float(values[0] - values[1]), 4))
        ids.append(int(indices[0]))
        if ids[-1] == EOS:
            break
    output = ids[len(prompt_ids):]
    check = model.generate(torch.tensor([prompt_ids]), do_sample=False, max_new_tokens=NEW_TOKENS)
    assert check[0, len(prompt_ids):].tolist() == output, "generate() and the plain loop disagree"
    return {"prompt_ids": prompt_ids, "output_ids": output, "margins": margins, "first_top5_logprobs": top5}


def write_tokenizer(folder):
    """A 512-entry byte-level BPE with a ChatML template, trained on the licence text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([(ROOT / "LICENSE").read_text()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
    config = {"bos_token": special[1], "eos_token": special[2], "pad_token": special[0],
              "model_max_length": 512, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def old_field_names(folder, dtype):
    """transformers 5 renamed a few fields; published checkpoints carry the older names, so the fixtures do too."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("dtype", None)
    config["torch_dtype"] = dtype
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_json_rows(path, rows):
    """One key a line: small diffs, and a file that a person can still read."""
    entries = [",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in row.items()) for row in rows]
    path.write_text("[\n" + ",\n".join("{\n" + entry + "\n}" for entry in entries) + "\n]\n")


def make(name, folder):
    architecture, overrides, dtype, shard_size, seed = MODELS[name]
    config = getattr(transformers, f"{architecture}Config")(**{**COMMON, **overrides})
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    randomise(model, seed)
    shutil.rmtree(folder, ignore_errors=True)
    # Stored weights are the ones that are computed with: round first, then go back to float32.
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))
    # Loaded anew, as a server would: converting the model back would keep rope frequencies rounded to bfloat16.
    model = type(model).from_pretrained(folder, dtype=torch.float32).eval()
    entries = []
    for number, prompt_ids in enumerate(prompts(config.vocab_size, seed)):
        entries.append({"name": f"{name}-{number}", "kind": "ids", **greedy(model, prompt_ids)})
    write_json_rows(folder / "expected.json", entries)
    write_tokenizer(folder)
    old_field_names(folder, dtype)
    for file in folder.iterdir():
        file.chmod(0o644)
    describe(name, folder, entries)


def describe(name, folder, entries):
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    margins = [m for e in entries for m in e["margins"]]
    distinct = sum(len(set(e["output_ids"])) for e in entries)
    print(f"{name}: {size:.2f} MB, {len(margins)} tokens ({distinct} distinct within their prompts), "
          f"{sum(m < 0.02 for m in margins)} margins below 0.02, shortest output {min(len(e['margins']) for e in entries)}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "tests/fixtures/models")
    parser.add_argument("names", nargs="*", help="only these (default: all)")
    arguments = parser.parse_args()
    for name in arguments.names or MODELS:
        if name not in MODELS:
            parser.error(f"unknown model '{name}'; there are: {', '.join(MODELS)}")
        make(name, arguments.out / name)


if __name__ == "__main__":
    main()
