"""Conversations that templates are rendered with, and jinja2 set up as transformers sets it up."""
import copy
import json
from datetime import datetime

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2026, 3, 4, 15, 6, 7)  # a Wednesday

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather <now> & \"later\" – für Städte",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "The city's name"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": ["number", "null"]}}},
        "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["city"]},
    "return": {"type": "string"}}}
NO_ARGS = {"type": "function", "function": {"name": "now", "description": "", "parameters": {
    "type": "object", "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(arguments, name="get_weather", id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, id="call00001", name="get_weather"):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": text}


SYSTEM = {"role": "system", "content": "You are a pirate."}
CITY = {"city": "Zürich", "days": 2, "where": {"lat": 47.4, "lon": None}, "tags": ["a", "b"], "ok": True}
CALLS = [user("Weather?"), assistant("", tool_calls=[call(CITY)]), tool('{"t": 21.5}'), assistant("21.5 °C"),
         user("And now?")]

CASES = [
    {"messages": [user("Hello, world!")], "add_generation_prompt": True},
    {"messages": [user("Hello\n  <b>\"there\"</b>  ")], "add_generation_prompt": False},
    {"messages": [SYSTEM, user(" Hi "), assistant("Arr! 🏴‍☠️"), user("Bye")], "add_generation_prompt": True},
    {"messages": [SYSTEM, user("Hi"), assistant("Hello")], "add_generation_prompt": False},
    {"messages": [user("a"), assistant("b"), user("c"), assistant("d"), user("e")], "add_generation_prompt": True},
    {"messages": [user("What is the weather?")], "tools": [WEATHER], "add_generation_prompt": True},
    {"messages": [SYSTEM, user("Both?")], "tools": [WEATHER, NO_ARGS], "add_generation_prompt": True},
    {"messages": CALLS, "tools": [WEATHER], "add_generation_prompt": True},
    {"messages": [SYSTEM] + CALLS[:3], "tools": [WEATHER, NO_ARGS], "add_generation_prompt": True},
    {"messages": [user("Two"), assistant(None, tool_calls=[call(json.dumps(CITY)), call("{}", "now", "call00002")]),
                  tool("sunny"), tool("12:00", "call00002", "now")], "tools": [WEATHER, NO_ARGS],
     "add_generation_prompt": True},
    {"messages": [user("Two"), assistant("Let me see.", tool_calls=[call(CITY), call({}, "now", "call00002")]),
                  tool("sunny"), tool("12:00", "call00002", "now"), assistant("It is sunny.")],
     "tools": [WEATHER, NO_ARGS], "add_generation_prompt": False},
    {"messages": [user("Think"), assistant("4", reasoning_content="2+2 is 4"), user("Again"),
                  assistant("5", reasoning_content="2+3\nis 5")], "add_generation_prompt": False},
    {"messages": [user("Think"), assistant("<think>\nhm\n</think>\n\n4"), user("Again")],
     "add_generation_prompt": True},
    {"messages": [user("Quick")], "add_generation_prompt": True, "enable_thinking": False},
    {"messages": [user("Slow")], "add_generation_prompt": True, "enable_thinking": True, "thinking": True,
     "reasoning_effort": "high"},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "part one"},
                                               {"type": "text", "text": " part two"}]}],
     "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}],
     "add_generation_prompt": True},
    {"messages": [{"role": "developer", "content": "Be brief."}, user("Hi")], "add_generation_prompt": True},
    {"messages": [user("From the documents?")], "add_generation_prompt": True,
     "documents": [{"title": "T1", "text": "one"}, {"title": "T2", "text": "two"}]},
    {"messages": [], "add_generation_prompt": True},
    {"messages": [user("a"), user("b")], "add_generation_prompt": True},
    {"messages": [{"role": "alien", "content": "x"}], "add_generation_prompt": True},
    {"messages": [SYSTEM, user("Schema")], "add_generation_prompt": True, "tools": [],
     "custom": {"nested": [1, 2.5, None, True, "ü"]}},
    {"messages": [user("Long " + "word " * 50), assistant("x" * 200, tool_calls=[]), user("End")],
     "add_generation_prompt": True, "bos_token": "<BOS>", "eos_token": "<EOS>"},
    {"messages": [SYSTEM, user("Other names")], "add_generation_prompt": True, "functions": "[]", "datetime": "today",
     "available_tools": [WEATHER], "date_string": "05 Mar 2026", "tools_in_user_message": False},
]


class Generation(Extension):
    """{% generation %} … {% endgeneration %}, whose body is rendered in a scope of its own."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def namespace(*args, **kwargs):
        if any(str(name).startswith("_") for name in dict(*args, **kwargs)):
            raise jinja2.exceptions.SecurityError("a namespace takes no name that begins with '_'")
        return jinja2.utils.Namespace(*args, **kwargs)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["namespace"] = namespace
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


def render(env, source, variables):
    """{"output": text}, or {"error": message, "raised": by the template's own raise_exception}."""
    variables = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False,
                 "bos_token": "<s>", "eos_token": "</s>", **copy.deepcopy(variables)}
    try:
        return {"output": env.from_string(source).render(**variables)}
    except Exception as error:  # whatever it is, it is what a caller would see
        return {"error": str(error), "raised": type(error) is jinja2.exceptions.TemplateError}


def render_all(env, source):
    return [{"input": case, **render(env, source, case)} for case in CASES]
