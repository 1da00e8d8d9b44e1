"""Answers of random JSON schemas, some in every run of the tests and 500 by tools/schemas; and what no grammar keeps to."""
import collections
import concurrent.futures
import os

import openai
import pytest
from conftest import SMOLLM2, Server
from schemas import keywords, listed, random_schemas, validate

COUNT, SEED = int(os.environ.get("REFRAIN_SCHEMAS", 25)), int(os.environ.get("REFRAIN_SEED", 17))
ASK = {"model": SMOLLM2.name, "messages": [{"role": "user", "content": "Tell me of a person."}], "temperature": 1, "seed": 7,
       "max_tokens": 100}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("schemas") / "serve.log", "--max-num-seqs", 16, "--max-model-len", 512, tp=1).start()
    yield server.client()
    assert server.stop() == 0


def ask(client, schema):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return client.chat.completions.create(response_format=form, **ASK).choices[0]


def fault_of(client, schema):
    """None, "cut" or what is wrong with the answer."""
    try:
        answer = ask(client, schema)
        if answer.finish_reason == "length":
            return "cut"
        validate(answer.message.content, schema)
    except Exception as error:
        return f"{schema}: {error}"
    return None


def test_the_random_schemas_have_every_keyword():
    used = set().union(*map(keywords, random_schemas(500, SEED)))
    assert {*listed("kDeciding"), *listed("kAsking"), *listed("kFormats")} <= used


def test_answers_of_random_schemas_validate(client):
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        faults = list(pool.map(lambda schema: fault_of(client, schema), random_schemas(COUNT, SEED)))
    counts = collections.Counter("valid" if fault is None else "cut" if fault == "cut" else "wrong" for fault in faults)
    print(f"{COUNT} schemas, seed {SEED}: {dict(counts)}")
    assert [fault for fault in faults if fault not in (None, "cut")] == []
    assert counts["valid"] >= 0.6 * COUNT


LEFT_OUT = {
    **{keyword: {"type": ["object", "array"], keyword: {}} for keyword in listed("kUnsupported")},
    "format": {"type": "string", "format": "colour"}, "multipleOf": {"type": "number", "multipleOf": 0.5},
    "minLength": {"type": "string", "minLength": 2, "pattern": "^a"}, "maxLength": {"maxLength": 2},
    "allOf": {"allOf": [{"type": "string"}, {"type": "string"}]},
    "oneOf": {"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 5}]},
    "enum": {"type": "string", "enum": [3]}, "anyOf": {"anyOf": []}, "properties": {"$ref": "#", "properties": {}},
    "required": {"type": "object", "properties": {"a": {}}, "required": ["b"]},
    "patternProperties": {"type": "object", "properties": {"a": {}}, "patternProperties": {"a": {}}},
    "propertyNames": {"type": "object", "properties": {"a": {}}, "propertyNames": {"maxLength": 1}},
    "minProperties": {"type": "object", "additionalProperties": {}, "minProperties": 2},
    "minItems": {"type": "array", "prefixItems": [{}], "items": False, "minItems": 2},
    "maximum": {"type": "integer", "minimum": 3, "maximum": 2}}


@pytest.mark.parametrize("named", LEFT_OUT)
def test_a_keyword_that_no_grammar_keeps_to_is_a_400_that_names_it(client, named):
    schema = {"type": "object", "properties": {"in": LEFT_OUT[named]}, "required": ["in"]}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, schema)
    assert named in refused.value.message
