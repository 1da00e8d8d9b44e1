#!/usr/bin/env python3
"""What `tests/gpu/check storey` needs beside programs: inputs of models with made-up weights, and a comparison.

  storey.py head MODEL OUT              config.json of an EAGLE-3 head as published for MODEL's shape
  storey.py wide MODEL TOKENIZER OUT    MODEL with TOKENIZER's tokens and fillers, as many as the model has entries
  storey.py prompts OUT.jsonl           prompts of several lengths, some of which repeat themselves
  storey.py same A.jsonl B.jsonl        answers with equal tokens; exit status 1 otherwise
"""
import json
import shutil
import sys
from pathlib import Path


def head(model, out):
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    vocab, layers = config["vocab_size"], config["num_hidden_layers"]
    config.update({"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "tie_word_embeddings": False,
                   "draft_vocab_size": 32000 if vocab > 32000 else vocab // 2})
    if layers < 6:
        config["eagle_aux_hidden_state_layer_ids"] = [0, 1, 1]
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def wide(model, tokenizer, out):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(model) / "config.json", out)
    entries = json.loads((out / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    table = json.loads((Path(tokenizer) / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = table["model"]["vocab"]
    used = set(vocab.values()) | {token["id"] for token in table.get("added_tokens", [])}
    for token in range(entries):
        if token not in used:
            vocab[f"\u0120f{token}"] = token
    (out / "tokenizer.json").write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")
    if (Path(tokenizer) / "tokenizer_config.json").exists():
        shutil.copy(Path(tokenizer) / "tokenizer_config.json", out)


def prompts(out):
    lines = []
    for number in range(16):
        ids = [3 + (37 * number + 11 * place) % 200 for place in range(5 + 9 * number)]
        if number % 2:
            ids = (ids[:7] * len(ids))[:len(ids)]
        lines.append(json.dumps({"prompt_ids": ids, "max_tokens": 64, "temperature": 0, "ignore_eos": True}))
    Path(out).write_text("\n".join(lines) + "\n", encoding="utf-8")


def same(first, second):
    answers = [[json.loads(line)["output_ids"] for line in Path(path).read_text(encoding="utf-8").splitlines()]
               for path in (first, second)]
    equal = sum(a == b for a, b in zip(*answers))
    print(f"{equal} of {len(answers[0])} answers have the same tokens, {sum(map(len, answers[0]))} tokens in all")
    return 0 if equal == len(answers[0]) == len(answers[1]) and answers[0] else 1


if __name__ == "__main__":
    commands = {"head": (head, 2), "wide": (wide, 3), "prompts": (prompts, 1), "same": (same, 2)}
    if len(sys.argv) < 2 or sys.argv[1] not in commands or len(sys.argv) - 2 != commands[sys.argv[1]][1]:
        print(__doc__, file=sys.stderr)
        sys.exit(64)
    sys.exit(commands[sys.argv[1]][0](*sys.argv[2:]) or 0)
