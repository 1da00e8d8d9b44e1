"""Simon Willison's llm: a command line that knows the server from a file, and a library."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

URL, MODEL = os.environ["REFRAIN_URL"], os.environ["REFRAIN_MODEL"]
HOME = tempfile.TemporaryDirectory()
Path(HOME.name, "extra-openai-models.yaml").write_text(f"""
- model_id: refrain
  model_name: {MODEL}
  api_base: "{URL}/v1"
  supports_tools: true
  supports_schema: true
- model_id: refrain-completion
  model_name: {MODEL}
  api_base: "{URL}/v1"
  completion: true
""")
os.environ.update(LLM_USER_PATH=HOME.name, OPENAI_API_KEY="none")
import llm  # noqa: E402  (it reads its directory when imported)

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}


def command(*words, text=None):
    done = subprocess.run([Path(sys.executable).with_name("llm"), *words], input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_answers_streamed_and_whole():
    words = ["-m", "refrain", "-o", "temperature", "0", "-o", "max_tokens", "48", "What is the capital of France?"]
    streamed, whole = command(*words), command("--no-stream", *words)
    assert "Paris" in streamed and streamed == whole


def test_the_command_keeps_to_a_schema():
    said = command("-m", "refrain", "--schema", json.dumps(SCHEMA), "-o", "temperature", "0", "-o", "max_tokens", "160",
                   "Tell me of a person.")
    assert set(json.loads(said)) == {"name", "age"}


def test_a_completion_model_continues():
    answer = llm.get_model("refrain-completion").prompt("One, two, three, four,", temperature=0, max_tokens=6, stream=False)
    assert answer.text().startswith(" five, six")


def test_a_conversation_remembers():
    conversation = llm.get_model("refrain").conversation()
    first = conversation.prompt("What is the capital of France?", temperature=0, max_tokens=48)
    assert "Paris" in first.text()
    second = conversation.prompt("Say it again.", temperature=0, max_tokens=8)
    assert second.text() and second.usage().input > first.usage().input + first.usage().output


def test_a_chain_calls_a_tool_and_tells_what_it_said():
    """llm has no word for tool_choice, so its first request is given it."""
    asked = []

    def weather(city: str) -> str:
        """Looks up the weather of a city."""
        asked.append(city)
        return f"Rain in {city}."
    model = llm.get_model("refrain")
    build = model.build_kwargs
    model.build_kwargs = lambda prompt, stream: {**build(prompt, stream), "tool_choice": "none" if asked else "required"}
    for stream in (False, True):
        asked.clear()
        chain = model.chain("Weather in Oslo?", tools=[weather], stream=stream, options={"temperature": 0, "max_tokens": 160})
        first, second = chain.responses()
        assert [call.arguments for call in first.tool_calls()] == [{"city": asked[0]}] and len(asked) == 1
        assert second.text() and not second.tool_calls() and second.input_tokens > first.input_tokens
