"""LiteLLM, which reads our messages to tell its users what went wrong."""
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or its import asks another host for prices
import litellm  # noqa: E402

URL, MODEL = os.environ["REFRAIN_URL"], os.environ["REFRAIN_MODEL"]
litellm.suppress_debug_info = True
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
TOOLS = [{"type": "function", "function": {"name": name, "description": "Looks it up.", "parameters": {
    "type": "object", "properties": {key: {"type": "string", "maxLength": 10}}, "required": [key],
    "additionalProperties": False}}} for name, key in (("weather", "city"), ("clock", "zone"))]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0,
          "maximum": 150}}, "required": ["name", "age"], "additionalProperties": False}


def ask(messages=CAPITAL, provider="hosted_vllm", **fields):
    return litellm.completion(**{"model": f"{provider}/{MODEL}", "api_base": URL + "/v1", "api_key": "none", "messages": messages,
                                 "temperature": 0, "max_tokens": 160, "timeout": 60, "num_retries": 0, **fields})


def test_a_chat_answers_through_both_providers():
    answers = [ask(provider=provider) for provider in ("hosted_vllm", "openai")]
    assert all("Paris" in answer.choices[0].message.content for answer in answers)
    assert {answer.choices[0].finish_reason for answer in answers} == {"stop"}
    assert answers[0].usage.total_tokens == answers[1].usage.total_tokens > 10


def test_a_stream_adds_up_to_the_answer():
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    whole, built = ask(), litellm.stream_chunk_builder(chunks, messages=CAPITAL)
    assert built.choices[0].message.content == whole.choices[0].message.content and len(chunks) > 5
    assert built.usage.completion_tokens == whole.usage.completion_tokens


def test_a_completion_continues_its_prompt():
    answer = litellm.text_completion(model=f"text-completion-openai/{MODEL}", api_base=URL + "/v1", api_key="none",
                                     prompt="One, two, three, four,", temperature=0, max_tokens=6)
    assert answer.choices[0].text.startswith(" five, six"), answer.choices[0].text


def test_a_forced_call_and_its_result():
    answer = ask([{"role": "user", "content": "Weather in Oslo?"}], tools=TOOLS, tool_choice="required")
    [call] = answer.choices[0].message.tool_calls
    key = {"weather": "city", "clock": "zone"}[call.function.name]
    assert set(json.loads(call.function.arguments)) == {key} and answer.choices[0].finish_reason == "tool_calls"
    history = [{"role": "user", "content": "Weather in Oslo?"}, answer.choices[0].message.model_dump(),
               {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    assert ask(history, tools=TOOLS, tool_choice="none", max_tokens=16).choices[0].message.content


def test_a_streamed_call_is_put_together():
    chunks = list(ask([{"role": "user", "content": "What time is it in Oslo?"}], tools=TOOLS, stream=True,
                      tool_choice={"type": "function", "function": {"name": "clock"}}))
    [call] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert call.function.name == "clock" and set(json.loads(call.function.arguments)) == {"zone"}


def test_an_answer_keeps_to_a_schema():
    answer = ask([{"role": "user", "content": "Tell me of a person."}], response_format={
        "type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}})
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "age"} and 0 <= person["age"] <= 150


def test_a_response_of_the_responses_api():
    response = litellm.responses(model=f"openai/{MODEL}", api_base=URL + "/v1", api_key="none", temperature=0,
                                 input="What is the capital of France?", max_output_tokens=48)
    assert "Paris" in response.output[-1].content[0].text and response.status == "completed"


def fault_of(**fields):
    try:
        ask(**fields)
    except Exception as error:
        return error
    raise AssertionError(f"{fields} was taken")


def test_a_prompt_that_is_too_long_is_known_as_such():
    """Users of LiteLLM cut their prompts, or take another model, when they see this error and not another."""
    for provider in ("hosted_vllm", "openai"):
        fault = fault_of(provider=provider, messages=[{"role": "user", "content": "word " * 5000}])
        assert isinstance(fault, litellm.ContextWindowExceededError), repr(fault)


def test_other_faults_keep_their_kind():
    assert isinstance(fault_of(tools=[{"type": "function"}]), litellm.BadRequestError)
    assert not isinstance(fault_of(logit_bias={"x": 1}), litellm.ContextWindowExceededError)
    assert isinstance(fault_of(model="hosted_vllm/other"), litellm.NotFoundError)
