"""LangChain's ChatOpenAI: structured output by each of its methods, histories with tool calls, streams, batches."""
import os
from typing import Literal

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

URL, MODEL = os.environ["REFRAIN_URL"], os.environ["REFRAIN_MODEL"]
chat = ChatOpenAI(model=MODEL, base_url=URL + "/v1", api_key="none", temperature=0, max_tokens=160, max_retries=0, timeout=60,
                  stream_usage=True)
QUESTION = "What will the weather be in Oslo?"


class Forecast(BaseModel):
    """The weather of a city."""
    city: str = Field(max_length=12)
    sky: Literal["clear", "grey"]
    degrees: int = Field(ge=-30, le=45)


@tool
def weather(city: str) -> str:
    """Looks up the weather of a city."""
    return f"Rain in {city}."


@tool
def clock(zone: Literal["UTC", "CET"]) -> str:
    """Looks up the time in a zone."""
    return f"Noon, {zone}."


def test_structured_output_by_each_method():
    for method, strict in (("json_schema", True), ("json_schema", None), ("function_calling", None), ("function_calling", True)):
        fields = {} if strict is None else {"strict": strict}
        answer = chat.with_structured_output(Forecast, method=method, include_raw=True, **fields).invoke(QUESTION)
        assert isinstance(answer["parsed"], Forecast) and answer["parsing_error"] is None, (method, strict, answer)
        assert answer["raw"].response_metadata["model_name"] == MODEL


def test_json_mode_gives_an_object():
    answer = chat.with_structured_output(None, method="json_mode", include_raw=True).invoke(
        [HumanMessage('Answer in JSON with the key "city". Which city is the capital of France?')])
    if answer["raw"].response_metadata["finish_reason"] == "stop":
        assert isinstance(answer["parsed"], dict) and answer["parsing_error"] is None, answer
    else:  # cut by max_tokens
        assert answer["raw"].content.lstrip().startswith("{"), answer


def test_structured_output_streams():
    parts = list(chat.with_structured_output(Forecast, method="json_schema").stream(QUESTION))
    assert parts[-1] == chat.with_structured_output(Forecast, method="json_schema").invoke(QUESTION)


def test_a_tool_is_called_and_its_result_told():
    bound = chat.bind_tools([weather, clock], tool_choice="any")
    asked = HumanMessage("What time is it in Oslo?")
    answer = bound.invoke([SystemMessage("You call tools."), asked])
    [call] = answer.tool_calls
    assert call["name"] in ("weather", "clock") and not answer.invalid_tool_calls and call["id"]
    result = {"weather": weather, "clock": clock}[call["name"]].invoke(call)
    assert isinstance(result, ToolMessage) and result.tool_call_id == call["id"]
    final = chat.bind_tools([weather, clock], tool_choice="none").invoke([asked, answer, result])
    assert final.content and not final.tool_calls


def test_a_history_of_several_calls_reaches_the_model():
    history = [HumanMessage("Weather in Oslo and Rome?"),
               AIMessage("", tool_calls=[{"name": "weather", "args": {"city": city}, "id": city} for city in ("Oslo", "Rome")]),
               *[ToolMessage(f"Rain in {city}.", tool_call_id=city) for city in ("Oslo", "Rome")]]
    shorter = chat.invoke(history[:3], max_tokens=8).usage_metadata
    answer = chat.invoke(history, max_tokens=8)
    assert answer.content and answer.usage_metadata["input_tokens"] > shorter["input_tokens"]


def test_a_named_tool_is_called_in_a_stream():
    whole = None
    for chunk in chat.bind_tools([weather, clock], tool_choice="clock").stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    [call] = whole.tool_calls
    assert call["name"] == "clock" and call["args"]["zone"] in ("UTC", "CET") and not whole.invalid_tool_calls
    assert whole.usage_metadata["output_tokens"] > 3 and whole.response_metadata["finish_reason"] == "tool_calls"


def test_streams_and_batches_say_what_an_answer_says():
    question = "What is the capital of France?"
    whole = chat.invoke(question)
    assert "Paris" in whole.content
    assert "".join(chunk.content for chunk in chat.stream(question)) == whole.content
    both = chat.batch([question, "What is the capital of Italy?"])
    assert "Paris" in both[0].content and both[1].content != both[0].content


def test_logprobs_are_told():
    entries = chat.bind(logprobs=True, top_logprobs=2, max_tokens=4).invoke("Hi").response_metadata["logprobs"]["content"]
    assert len(entries) == 4 and all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in entries)


def test_the_responses_api():
    responses = ChatOpenAI(model=MODEL, base_url=URL + "/v1", api_key="none", temperature=0, max_tokens=160, max_retries=0,
                           timeout=60, use_responses_api=True)
    answer = responses.invoke("What is the capital of France?")
    assert "Paris" in answer.text and answer.usage_metadata["total_tokens"] > 10
    assert isinstance(responses.with_structured_output(Forecast, method="json_schema").invoke(QUESTION), Forecast)
    [call] = responses.bind_tools([weather, clock], tool_choice="clock").invoke(QUESTION).tool_calls
    assert call["name"] == "clock" and call["args"]["zone"] in ("UTC", "CET")


def test_a_prompt_that_is_too_long_is_a_bad_request():
    try:
        chat.invoke("word " * 5000)
        raise AssertionError("it was taken")
    except openai.BadRequestError as error:
        assert "maximum context length" in str(error)
