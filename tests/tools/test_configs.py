"""The files of configs/ follow their schemas, and the schemas refuse what is wrong."""
import copy
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
ENGINE_FILES = sorted((CONFIGS / "engine").glob("*.json"))
MODEL_FILES = sorted(CONFIGS.glob("models/*/config.json")) + sorted(ROOT.glob("tests/fixtures/models/*/config.json"))


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def validator(name):
    schema = load(CONFIGS / name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_there_are_files_to_check():
    assert len(ENGINE_FILES) >= 3 and len(MODEL_FILES) >= 8


@pytest.mark.parametrize("path", ENGINE_FILES, ids=lambda p: p.stem)
def test_engine_file_follows_its_schema(path):
    content = load(path)
    assert (path.parent / content["$schema"]).resolve() == CONFIGS / "engine.schema.json"
    validator("engine.schema.json").validate(content)
    if "model" in content:
        assert (ROOT / content["model"] / "config.json").exists()


@pytest.mark.parametrize("path", MODEL_FILES, ids=lambda p: p.parent.name)
def test_model_shape_follows_its_schema(path):
    content = load(path)
    validator("model.schema.json").validate(content)
    assert content["num_attention_heads"] % content["num_key_value_heads"] == 0


@pytest.mark.parametrize("change", [
    {"max-num-seqz": 8}, {"max-num-seqs": 0}, {"max-num-seqs": "8"}, {"dtype": "float64"}, {"port": 65536},
    {"enforce-eager": "yes"}, {"cudagraph-mode": "full"}, {"cudagraph-capture-sizes": [0]}, {"block-size": 24},
    {"compilation-config": {"cudagraph_modes": "FULL"}}])
def test_engine_schema_refuses(change):
    assert not validator("engine.schema.json").is_valid(change)


@pytest.mark.parametrize("change", [
    {"hidden_size": 0}, {"num_hidden_layers": "2"}, {"architectures": ["GPT2LMHeadModel"]}, {"hidden_act": "gelu"},
    {"rope_scaling": {"rope_type": "yarn"}}, {"rms_norm_eps": -1e-5}, {"vocab_size": None}])
def test_model_schema_refuses(change):
    content = copy.deepcopy(load(MODEL_FILES[0]))
    assert validator("model.schema.json").is_valid(content)
    assert not validator("model.schema.json").is_valid({**content, **change})


def test_engine_schema_names_every_option_of_serve():
    program = Path(os.environ.get("REFRAIN_BUILD_DIR", ROOT / "build")) / "bin/refrain"
    assert program.exists(), "tools/test builds it before it runs this"
    text = subprocess.run([program, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"^ +(?:-\w, ?)?--([a-z][a-z0-9-]*)", text, re.M)) - {"help", "version", "config"}
    assert options == set(load(CONFIGS / "engine.schema.json")["properties"]) - {"$schema"}
