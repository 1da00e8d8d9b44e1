"""Instructor, in each mode that goes to a server of OpenAI's API."""
import os
from collections.abc import Iterable
from typing import Literal, Union

import instructor
import openai
from pydantic import BaseModel, Field

URL, MODEL = os.environ["REFRAIN_URL"], os.environ["REFRAIN_MODEL"]
OPENAI = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60)
ASK = [{"role": "user", "content": "Tell me of a person of 33 years."}]


class Person(BaseModel):
    """A person."""
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


class City(BaseModel):
    """A city."""
    city: Literal["Oslo", "Rome"]


def person(mode, **fields):
    client = instructor.from_openai(OPENAI, mode=mode)
    return client.chat.completions.create(model=MODEL, messages=ASK, response_model=Person, max_retries=0, temperature=0,
                                          max_tokens=160, **fields)


def form(regex):
    """What a small model would not write by itself."""
    return {"extra_body": {"structured_outputs": {"regex": regex}}}


def test_tools():
    assert isinstance(person(instructor.Mode.TOOLS), Person)


def test_tools_strict():
    assert isinstance(person(instructor.Mode.TOOLS_STRICT), Person)


def test_parallel_tools():
    """The mode always asks for `auto`, so the calls are forced by their form, and parsed as the model's own."""
    client = instructor.from_openai(OPENAI, mode=instructor.Mode.PARALLEL_TOOLS)
    regex = (r'<tool_call>\{"name": "Person", "arguments": \{"name": "[A-Z][a-z]{2,8}", "age": [1-9][0-9]\}\}</tool_call>'
             r'<tool_call>\{"name": "City", "arguments": \{"city": "(Oslo|Rome)"\}\}</tool_call>')
    answers = list(client.chat.completions.create(model=MODEL, messages=ASK, response_model=Iterable[Union[Person, City]],
                                                  max_retries=0, temperature=0, max_tokens=160, **form(regex)))
    assert [type(answer) for answer in answers] == [Person, City] and 10 <= answers[0].age <= 99, answers


def test_json():
    assert isinstance(person(instructor.Mode.JSON), Person)


def test_json_schema():
    assert isinstance(person(instructor.Mode.JSON_SCHEMA), Person)


def test_md_json():
    fenced = r'```json\n\{"name": "[A-Z][a-z]{2,8}", "age": [1-9][0-9]\}\n```'
    assert 10 <= person(instructor.Mode.MD_JSON, **form(fenced)).age <= 99


def test_responses_tools():
    client = instructor.from_openai(OPENAI, mode=instructor.Mode.RESPONSES_TOOLS)
    answer = client.responses.create(model=MODEL, input=ASK, response_model=Person, max_retries=0, temperature=0,
                                     max_output_tokens=160)
    assert isinstance(answer, Person)


def test_a_partial_answer_grows():
    client = instructor.from_openai(OPENAI, mode=instructor.Mode.TOOLS)
    parts = list(client.chat.completions.create_partial(model=MODEL, messages=ASK, response_model=Person, max_retries=0,
                                                        temperature=0, max_tokens=160))
    assert len(parts) > 2 and parts[-1].name and 0 <= parts[-1].age <= 150
