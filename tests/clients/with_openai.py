"""OpenAI's own client: chats, tools, structured answers, responses."""
import json
import os
from enum import Enum

import openai
from pydantic import BaseModel, Field

URL, MODEL = os.environ["REFRAIN_URL"], os.environ["REFRAIN_MODEL"]
client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60)
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 160}
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Weather(BaseModel):
    """Looks up the weather of a city."""
    city: str = Field(max_length=12)
    unit: Unit
    days: int = Field(ge=1, le=7)


class Clock(BaseModel):
    zone: str = Field(max_length=12)


WEATHER, CLOCK = openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Clock)
ASK = [{"role": "user", "content": "What will the weather be in Oslo?"}]


def test_a_chat_answers_and_counts():
    answer = client.chat.completions.create(messages=CAPITAL, **GREEDY)
    assert "Paris" in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 10
    assert answer.model == MODEL and answer.choices[0].message.tool_calls is None


def test_a_streamed_chat_adds_up():
    whole = client.chat.completions.create(messages=CAPITAL, **GREEDY)
    with client.chat.completions.stream(messages=CAPITAL, stream_options={"include_usage": True}, **GREEDY) as stream:
        parts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(parts) == whole.choices[0].message.content == final.choices[0].message.content and len(parts) > 3
    assert final.usage == whole.usage and final.choices[0].finish_reason == "stop"


def test_models_are_listed_and_retrieved():
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    try:
        client.models.retrieve("other")
        raise AssertionError("a model that is not there was retrieved")
    except openai.NotFoundError as error:
        assert "other" in error.message


def test_a_tool_is_called_and_its_result_answered():
    answer = client.chat.completions.parse(messages=ASK, tools=[WEATHER, CLOCK], tool_choice="required", **GREEDY).choices[0]
    [call] = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and isinstance(call.function.parsed_arguments, (Weather, Clock))
    history = [*ASK, answer.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "Rain all week."}]
    after = client.chat.completions.create(messages=history, tools=[WEATHER, CLOCK], tool_choice="none", **GREEDY)
    assert after.choices[0].message.content and after.choices[0].message.tool_calls is None


def test_a_named_tool_is_called_in_a_stream_as_in_a_whole_answer():
    fields = {"messages": ASK, "tools": [WEATHER, CLOCK], **GREEDY,
              "tool_choice": {"type": "function", "function": {"name": "Weather"}}}
    [call] = client.chat.completions.parse(**fields).choices[0].message.tool_calls
    with client.chat.completions.stream(**fields) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    [streamed] = final.message.tool_calls
    assert streamed.function.parsed_arguments == call.function.parsed_arguments and final.finish_reason == "tool_calls"
    assert isinstance(streamed.function.parsed_arguments, Weather) and streamed.id
    assert "".join(event.arguments_delta for event in deltas) == call.function.arguments and len(deltas) > 3


def test_an_answer_is_parsed_into_its_class():
    answer = client.chat.completions.parse(messages=ASK, response_format=Weather, **GREEDY).choices[0]
    assert isinstance(answer.message.parsed, Weather) and answer.message.refusal is None
    assert answer.message.parsed == Weather(**json.loads(answer.message.content))
    with client.chat.completions.stream(messages=ASK, response_format=Weather, **GREEDY) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.message.parsed


def test_a_response_is_parsed_and_goes_on():
    response = client.responses.parse(model=MODEL, input="What will the weather be in Oslo?", text_format=Weather,
                                      temperature=0, max_output_tokens=160)
    assert isinstance(response.output_parsed, Weather) and response.status == "completed"
    following = client.responses.create(model=MODEL, input="Say yes.", previous_response_id=response.id, temperature=0,
                                        max_output_tokens=8)
    alone = client.responses.create(model=MODEL, input="Say yes.", temperature=0, max_output_tokens=8)
    assert following.output_text and following.usage.input_tokens > response.usage.output_tokens + alone.usage.input_tokens
    assert client.responses.retrieve(response.id).output_text == response.output_text


def test_a_response_streams_a_call_that_is_forced():
    tool = openai.pydantic_function_tool(Weather)["function"]
    with client.responses.stream(model=MODEL, input="What will the weather be in Oslo?", temperature=0, max_output_tokens=160,
                                 tools=[{"type": "function", **tool}],
                                 tool_choice={"type": "function", "name": "Weather"}) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    [call] = [item for item in final.output if item.type == "function_call"]
    assert call.name == "Weather" and call.arguments == "".join(deltas)
    Weather(**json.loads(call.arguments))


def test_errors_are_the_clients_own():
    for fields, kind, words in (({"model": "other"}, openai.NotFoundError, "other"),
                                ({"temperature": 9}, openai.BadRequestError, "temperature"),
                                ({"messages": [{"role": "user", "content": "x " * 5000}]}, openai.BadRequestError,
                                 "maximum context length")):
        try:
            client.chat.completions.create(**{"messages": CAPITAL, **GREEDY, **fields})
            raise AssertionError(f"{fields} was taken")
        except kind as error:
            assert words in error.message, error.message
