#!/usr/bin/env python3
"""Random 0.2B Llama, Qwen2 and Qwen3 checkpoints with transformers' greedy tokens, made on a GPU machine.

    python3 tests/gpu/oracle/random_models.py OUT
Each folder holds what `refrain generate` needs and expected.json for tools/compare_golden.py. Weights are bfloat16,
transformers computes in float32.
"""
import json
import sys
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import make_tiny_models as tiny  # noqa: E402

tiny.COMMON.update({
    "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8,
    "vocab_size": 32000,
})
tiny.MODELS = {
    "llama-0.2b": ("Llama", {"num_hidden_layers": 12, "tie_word_embeddings": False}, "bfloat16", None, 21),
    "qwen2-0.2b": ("Qwen2", {"num_hidden_layers": 12, "tie_word_embeddings": True}, "bfloat16", None, 22),
    "qwen3-0.2b": ("Qwen3", {"num_hidden_layers": 12, "head_dim": 128, "tie_word_embeddings": True}, "bfloat16",
                   None, 23),
}
torch.backends.cuda.matmul.allow_tf32 = False
plain_greedy = tiny.greedy


def greedy(model, prompt_ids):
    """The golden entry, computed on the GPU."""
    model.cuda()
    with torch.device("cuda"):
        return plain_greedy(model, prompt_ids)


@torch.no_grad()
def show_bfloat16(folder):
    """How far transformers' own bfloat16 is from its float32: what a bfloat16 engine can be held to."""
    entries = json.loads((folder / "expected.json").read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().cuda()
    for entry in entries:
        ids = torch.tensor([entry["prompt_ids"]], device="cuda")
        logprobs = torch.log_softmax(model(ids).logits[0, -1].float(), dim=-1)
        worst = max(abs(float(logprobs[token]) - value) for token, value in entry["first_top5_logprobs"])
        output = model.generate(ids, do_sample=False, max_new_tokens=32)[0, ids.shape[1]:].tolist()
        same = next((i for i, (a, b) in enumerate(zip(output, entry["output_ids"])) if a != b), len(output))
        print(f"transformers bfloat16 {entry['name']}: {same}/32 tokens, first-step log-probabilities differ by {worst:.4f}")


tiny.greedy = greedy
out = Path(sys.argv[1])
for name in tiny.MODELS:
    (out / name).mkdir(parents=True, exist_ok=True)
    tiny.make(name, out / name)
    show_bfloat16(out / name)
