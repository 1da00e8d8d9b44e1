#!/usr/bin/env python3
"""Compares what `refrain generate` wrote with a golden file (tests/golden, tests/fixtures/models/*/expected.json).

    tools/compare_golden.py prompts GOLDEN IN.jsonl          writes the prompts of a golden file
    refrain generate --model DIR --prompts IN.jsonl --output OUT.jsonl --dtype float32
    tools/compare_golden.py compare GOLDEN OUT.jsonl         prints a table, exit 1 on a difference

Tokens must be equal. They may part only at a step whose margin (log-probability gap between first and second choice)
is below --margin; that entry's comparison ends there. The first step's top five log-probabilities agree within
--logprob-tolerance: 0.02 for float32 activations, 0.2 for bfloat16.
"""
import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

MARGIN = 0.02
FLOAT32_TOLERANCE = 0.02
BFLOAT16_TOLERANCE = 0.2  # seen: 0.14 on two ranks with avx2 and avx512, 0.164 with avx512_bf16


class BadInput(Exception):
    """A file does not have the expected form; the text names the file and the field."""


@dataclass
class Row:
    """One entry's outcome. `compared` tokens were equal; fault is None when the entry passes."""
    name: str
    compared: int
    expected: int
    logprob_difference: float
    fault: str | None
    note: str = ""


def load_golden(path):
    entries = json.loads(Path(path).read_text(encoding="utf-8"))
    for entry in entries:
        for field in ("name", "prompt_ids", "output_ids", "margins", "first_top5_logprobs"):
            if field not in entry:
                raise BadInput(f"{path}: an entry has no '{field}'")
    return entries


def load_answers(path):
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line) for line in lines if line.strip()]
    for number, answer in enumerate(answers, 1):
        for field in ("prompt_ids", "output_ids"):
            if field not in answer:
                raise BadInput(f"{path}, line {number}: no '{field}' ({json.dumps(answer)[:200]})")
    return answers


def prompt_line(entry, max_tokens, as_ids=False):
    """The line of prompts JSONL that asks for this entry: greedily, with the first alternatives."""
    line = {"max_tokens": max_tokens, "temperature": 0, "logprobs": 5}
    if as_ids or ("prompt" not in entry and "messages" not in entry):
        return {"prompt_ids": entry["prompt_ids"], **line}
    key = "messages" if "messages" in entry else "prompt"
    return {key: entry[key], **line}


def write_prompts(entries, path, as_ids=False):
    # The same limit for all: an entry that ends by itself must do so, not because it may go no further.
    longest = max(len(entry["output_ids"]) for entry in entries)
    text = "".join(json.dumps(prompt_line(entry, longest, as_ids)) + "\n" for entry in entries)
    Path(path).write_text(text, encoding="utf-8")


def first_top(answer):
    """{token id: log-probability} of the first step's alternatives."""
    steps = answer.get("logprobs") or []
    if not steps:
        return {}
    first = steps[0]
    found = {token: logprob for token, logprob in first["top"]}
    found.setdefault(first["token_id"], first["logprob"])
    return found


def compare_logprobs(entry, answer, tolerance):
    """(largest difference, fault). The last of five may swap with a sixth that is as likely."""
    found = first_top(answer)
    if not found:
        return 0.0, "no log-probabilities in the answer"
    worst, smallest = 0.0, min(found.values())
    for token, logprob in entry["first_top5_logprobs"]:
        if token in found:
            worst = max(worst, abs(found[token] - logprob))
        elif logprob > smallest + tolerance:
            return worst, f"token {token} ({logprob:.3f}) is not among the first step's alternatives"
    if worst > tolerance:
        return worst, f"first-step log-probabilities differ by {worst:.4f}, allowed {tolerance}"
    return worst, None


def compare_tokens(entry, answer, margin):
    """(equal tokens, fault, note)."""
    expected, got = entry["output_ids"], answer["output_ids"]
    same = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), min(len(expected), len(got)))
    if same == len(expected) == len(got):
        return same, None, ""
    if same < len(expected) and same < len(got) and entry["margins"][same] < margin:
        return same, None, f"parts at step {same}, margin {entry['margins'][same]}"
    here = f"{expected[same]}" if same < len(expected) else "the end"
    there = f"{got[same]}" if same < len(got) else "the end"
    gap = f" (margin {entry['margins'][same]})" if same < len(expected) else ""
    return same, f"step {same}: expected {here}{gap}, got {there}", ""


def compare_entry(entry, answer, margin=MARGIN, tolerance=FLOAT32_TOLERANCE):
    expected = len(entry["output_ids"])
    if answer["prompt_ids"] != entry["prompt_ids"]:
        return Row(entry["name"], 0, expected, 0.0, "the prompt was encoded to other token ids")
    same, fault, note = compare_tokens(entry, answer, margin)
    difference = 0.0
    if tolerance is not None:
        difference, logprob_fault = compare_logprobs(entry, answer, tolerance)
        fault = fault or logprob_fault
    if not fault and not note and "text" in answer and "output_text" in entry:
        if answer["text"] != entry["output_text"]:
            fault = f"same tokens, other text: {answer['text'][:60]!r}"
    return Row(entry["name"], same, expected, difference, fault, note)


def compare(entries, answers, margin=MARGIN, tolerance=FLOAT32_TOLERANCE):
    """One Row an entry, in order. tolerance None leaves log-probabilities out."""
    if len(entries) != len(answers):
        raise BadInput(f"{len(entries)} golden entries but {len(answers)} answers")
    return [compare_entry(e, a, margin, tolerance) for e, a in zip(entries, answers)]


def print_table(rows):
    width = max(len(row.name) for row in rows)
    print(f"{'entry':<{width}}  {'tokens':>9}  {'logprob diff':>12}  outcome")
    for row in rows:
        outcome = f"DIFFERENT: {row.fault}" if row.fault else f"equal{', ' + row.note if row.note else ''}"
        print(f"{row.name:<{width}}  {row.compared:>4}/{row.expected:<4}  {row.logprob_difference:>12.4f}  {outcome}")
    print(f"{sum(row.fault is None for row in rows)} of {len(rows)} entries hold")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prompts = commands.add_parser("prompts", help="write the prompts of a golden file as JSONL")
    prompts.add_argument("golden")
    prompts.add_argument("output")
    prompts.add_argument("--as-ids", action="store_true", help="token ids instead of text and messages")
    check = commands.add_parser("compare", help="compare answers with a golden file")
    check.add_argument("golden")
    check.add_argument("answers")
    check.add_argument("--margin", type=float, default=MARGIN)
    check.add_argument("--logprob-tolerance", type=float, default=FLOAT32_TOLERANCE)
    check.add_argument("--no-logprobs", action="store_true", help="compare tokens and text only")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    try:
        entries = load_golden(arguments.golden)
        if arguments.command == "prompts":
            write_prompts(entries, arguments.output, arguments.as_ids)
            return 0
        tolerance = None if arguments.no_logprobs else arguments.logprob_tolerance
        rows = compare(entries, load_answers(arguments.answers), arguments.margin, tolerance)
    except (BadInput, OSError, json.JSONDecodeError) as error:
        print(f"compare_golden: {error}", file=sys.stderr)
        return 2
    print_table(rows)
    return 1 if any(row.fault for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
