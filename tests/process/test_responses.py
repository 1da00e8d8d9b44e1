"""/v1/responses: the official OpenAI client against a real server; calls by a format that the prompt shows (test_chat)."""
import json

import openai
import pytest
from conftest import Server
from test_chat import TEMPLATE

MODEL = "smol"
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
QUESTION = "What is the weather in Berlin?"
SHOWN = {"model": MODEL, "temperature": 0, "max_output_tokens": 64,
         "extra_body": {"chat_template": TEMPLATE, "stop": [".\n"]}}
PLAIN = {"model": MODEL, "temperature": 0, "max_output_tokens": 24}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("responses") / "serve.log", "--max-model-len", 1024, "--served-model-name", MODEL,
                    "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3",
                    "--trust-request-chat-template", tp=1).start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def text_of_chat(client, *messages):
    answer = client.chat.completions.create(model=MODEL, messages=list(messages), temperature=0, max_tokens=24)
    return answer.choices[0].message.content


def test_a_text_is_what_a_chat_gives(client):
    response = client.responses.create(input="Say hello.", instructions="You are terse.", metadata={"a": "b"}, **PLAIN)
    chat = text_of_chat(client, {"role": "system", "content": "You are terse."}, {"role": "user", "content": "Say hello."})
    assert response.output_text == chat and response.object == "response" and response.id.startswith("resp_")
    assert response.status == ("completed" if response.usage.output_tokens < 24 else "incomplete")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.instructions, response.metadata, response.max_output_tokens) == ("You are terse.", {"a": "b"}, 24)
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}]
    assert client.responses.create(input=parts, instructions="You are terse.", **PLAIN).output_text == chat


def test_a_response_that_is_cut_says_so(client):
    response = client.responses.create(model=MODEL, input="Tell me a story.", temperature=0, max_output_tokens=3)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"


def test_an_answer_keeps_to_the_form_it_is_given(client):
    response = client.responses.create(input="Is water wet?", extra_body={"structured_outputs": {"choice": ["Quite so", "Not so"]}},
                                       **PLAIN)
    assert response.output_text in ("Quite so", "Not so")


def test_a_call_comes_with_its_reasoning_and_its_text(client):
    response = client.responses.create(input=QUESTION, tools=[WEATHER], **SHOWN)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    reasoning, message, call = response.output
    assert reasoning.content[0].text == "I call weather for Berlin." and message.content[0].text == "Let me see."
    assert call.name == "weather" and json.loads(call.arguments) == {"city": "Berlin"} and call.call_id
    assert response.status == "completed"


def test_the_events_add_up_to_the_response(client):
    whole = client.responses.create(input=QUESTION, tools=[WEATHER], **SHOWN)
    events = list(client.responses.create(input=QUESTION, tools=[WEATHER], stream=True, **SHOWN))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    assert types[:2] == ["response.created", "response.in_progress"] and types[-1] == "response.completed"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    arguments = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(e.delta for e in arguments) == whole.output[2].arguments and len(arguments) > 3
    final = events[-1].response

    def plain(response):
        return [{**item.to_dict(), "id": None, "call_id": None} for item in response.output]
    assert plain(final) == plain(whole) and final.usage == whole.usage
    opened = [e.item.id for e in events if e.type == "response.output_item.added"]
    assert opened == [e.item.id for e in events if e.type == "response.output_item.done"] == [i.id for i in final.output]


def test_the_clients_own_accumulator_understands_the_events(client):
    with client.responses.stream(input=QUESTION, tools=[WEATHER], **SHOWN) as stream:
        final = stream.get_final_response()
    assert json.loads(final.output[2].arguments) == {"city": "Berlin"}


def test_a_result_of_a_call_goes_back_as_an_item(client):
    first = client.responses.create(input=QUESTION, tools=[WEATHER], **SHOWN)
    call = first.output[2]
    history = [{"role": "user", "content": QUESTION}, *[item.to_dict() for item in first.output],
               {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."},
               {"role": "user", "content": "What is the weather in Rome?"}]
    second = client.responses.create(input=history, tools=[WEATHER], **SHOWN)
    assert json.loads(second.output[-1].arguments) == {"city": "Rome"}


def test_a_conversation_goes_on_from_a_stored_response(client):
    first = client.responses.create(input="My name is Ada.", **PLAIN)
    second = client.responses.create(input="What is my name?", previous_response_id=first.id, **PLAIN)
    assert second.previous_response_id == first.id
    assert second.output_text == text_of_chat(
        client, {"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "What is my name?"})
    assert client.responses.retrieve(first.id).output_text == first.output_text


def test_what_is_not_stored_is_not_found(client):
    gone = client.responses.create(input="My name is Ada.", store=False, **PLAIN)
    for name in (gone.id, "resp_0"):
        with pytest.raises(openai.BadRequestError, match="is not kept"):
            client.responses.create(input="What is my name?", previous_response_id=name, **PLAIN)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)


@pytest.mark.parametrize(("fields", "message"), [
    ({"input": []}, "input must be"),
    ({"input": [{"type": "image"}]}, "is of type 'image'"),
    ({"input": "x", "background": True}, "background is not supported"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "only functions are supported"),
    ({"input": "x", "max_output_tokens": 0}, "must be a whole number"),
    ({"input": "word " * 2000}, "maximum context length is"),
])
def test_what_is_not_there_is_refused_with_a_sentence(client, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.responses.create(model=MODEL, **fields)
