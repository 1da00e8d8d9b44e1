"""Random JSON schemas that use every keyword of structured output, with bounded lengths, and what checks an answer. As a program:
schemas.py COUNT SEED prints them, one a line."""
import datetime
import ipaddress
import json
import random
import re
import sys
import uuid
from pathlib import Path

import jsonschema

CHECK = Path(__file__).resolve().parents[2] / "runtime/grammar/schema_check.cpp"
NAMES = ["name", "size", "first key", "list", "x_1", "é"]
LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
URI_PART = r"(%[0-9A-Fa-f]{2}|[A-Za-z0-9\-._~!$&'()*+,;=:@/?#\[\]])*"


def is_ipv4(text):
    """RFC 2673 lets zeros lead, Python's ipaddress does not."""
    return re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}", text) and all(int(part) < 256 for part in text.split("."))


# What each format means, in the standard library's words where it has some. Patterns are matched whole.
FORMATS = {
    "date": datetime.date.fromisoformat, "ipv4": is_ipv4, "ipv6": ipaddress.IPv6Address, "uuid": uuid.UUID,
    "time": r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)",
    "date-time": r"\d{4}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)",
    "duration": r"P(\d+W|(?=.)(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)",
    "email": r"[^@]+@[^@]+", "hostname": rf"{LABEL}(\.{LABEL})*", "uri": rf"[A-Za-z][A-Za-z0-9+.\-]*:{URI_PART}",
    "uri-reference": URI_PART, "uri-template": r"([^\x00-\x20{}\"'<>\\^`|]|\{[^{}\s]+\})*",
    "json-pointer": r"(/([^~/]|~[01])*)*", "relative-json-pointer": r"(0|[1-9]\d*)(#|(/([^~/]|~[01])*)*)"}


def listed(name):
    """A list of the server's own: kUnsupported, kDeciding, kAsking or kFormats."""
    found = re.search(rf"{name} = \{{(.*?)\}};", CHECK.read_text(), re.S)
    return re.findall(r'"([^"]+)"', found[1])


def of_format(form):
    def check(text):
        meaning = FORMATS[form]
        return not isinstance(text, str) or bool(re.fullmatch(meaning, text, re.S) if isinstance(meaning, str) else meaning(text))
    return check


CHECKER = jsonschema.FormatChecker(formats=())
for name in FORMATS:
    CHECKER.checks(name, raises=ValueError)(of_format(name))


def validate(text, schema):
    jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(json.loads(text))


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def some(self, *kinds):
        return self.random.choice(kinds)

    def string(self, depth):
        return {"type": "string", **self.some(
            {"minLength": 1, "maxLength": 8}, {"maxLength": 5}, {"pattern": "^[a-z]{2,5}$"}, {"pattern": "^(on|off)$"},
            {"format": self.random.choice(sorted(FORMATS))})}

    def number(self, depth):
        least = self.random.randint(-40, 40)
        most = least + self.random.randint(10, 400)
        low, high = self.some("minimum", "exclusiveMinimum"), self.some("maximum", "exclusiveMaximum")
        bounds = {low: least, high: most}
        return self.some({"type": "integer", **bounds, "multipleOf": self.some(2, 5)}, {"type": "integer", **bounds},
                         {"type": self.some("integer", "number"), **self.some(bounds, {low: least}, {high: most})})

    def plain(self, depth):
        return {"type": self.some("boolean", "null")}

    def types(self, depth):
        return self.some({"type": ["null", "boolean"]}, {"type": ["string", "integer"], "maxLength": 3, "minimum": 1, "maximum": 9})

    def values(self, depth):
        values = self.random.sample(["red", "green", 3, True, None, "a b", {"k": [1]}, -2.5], 3)
        return self.some({"enum": values}, {"const": values[0]}, {"enum": ["on", "off"], "type": "string"})

    def array(self, depth):
        least = self.random.randint(0, 2)
        return {"type": "array", "items": self.any(depth + 1), "minItems": least, "maxItems": least + self.random.randint(0, 2)}

    def tuple(self, depth):
        schema = {"type": "array", "prefixItems": [self.any(depth + 1), self.any(depth + 1)], "minItems": 2}
        rest = self.some("items", "unevaluatedItems")
        return {**schema, **self.some({rest: False}, {rest: self.plain(depth), "maxItems": 4})}

    def either(self, depth):
        if self.some(True, False):
            return {"anyOf": [self.any(depth + 1), self.any(depth + 1)], "title": "either"}
        one = {"type": "object", "properties": {"kind": {"const": "one"}, "it": self.any(depth + 1)},
               "required": ["kind", "it"], "additionalProperties": False}
        two = {"type": "object", "properties": {"kind": {"const": "two"}}, "required": ["kind"], "additionalProperties": False}
        return self.some({"oneOf": [one, two]}, {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
                         {"oneOf": [{"const": 1}, {"enum": ["a", "b"]}]}, {"allOf": [self.any(depth + 1)]})

    def reference(self, depth):
        where = self.some("$defs", "definitions")
        self.definitions = {**self.definitions, where: {**self.definitions.get(where, {}), "item": self.some(
            {"type": "string", "maxLength": 4}, {"type": "integer", "minimum": 0, "maximum": 99})}}
        return {"$ref": f"#/{where}/item"}

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randint(1, 4))
        return {"type": "object", "properties": {name: self.any(depth + 1) for name in names},
                "required": self.random.sample(names, self.random.randint(0, len(names))), "additionalProperties": False}

    def open_object(self, depth):
        """Objects with members that have no names of their own."""
        counted = {"minProperties": self.random.randint(0, 1), "maxProperties": self.random.randint(1, 3)}
        inner = self.any(depth + 1)
        return {"type": "object", **self.some(
            {"additionalProperties": inner, **counted}, {"unevaluatedProperties": inner, **counted},
            {"propertyNames": {"pattern": "^[a-z]{1,4}$"}, "additionalProperties": inner, **counted},
            {"patternProperties": {"^[a-z]{1,4}$": inner}, "additionalProperties": False, **counted},
            {"properties": {"name": self.plain(depth), "size": inner}, "required": ["name"], "additionalProperties": inner,
             "maxProperties": 3},
            {"properties": {"name": self.plain(depth), "size": inner}, "unevaluatedProperties": False, "minProperties": 2})}

    def any(self, depth):
        kinds = [self.string, self.string, self.number, self.plain, self.types, self.values, self.reference]
        if depth < 3:
            kinds += 2 * [self.array, self.tuple, self.either, self.object, self.open_object]
        return self.random.choice(kinds)(depth)

    def schema(self):
        self.definitions = {}
        schema = self.some(self.object, self.object, self.open_object, self.array, self.either)(0)
        return {**schema, **self.definitions}


def random_schemas(count, seed):
    maker = Maker(seed)
    schemas = [maker.schema() for _ in range(count)]
    schemas[0] = {"$ref": "#/$defs/tree", "$defs": {"tree": {  # a recursive one
        "type": "object", "required": ["leaf"], "additionalProperties": False,
        "properties": {"leaf": {"type": "boolean"}, "next": {"$ref": "#/$defs/tree"}}}}}
    return schemas


def keywords(schema):
    """The keywords of a schema and of those inside it, and its formats."""
    if not isinstance(schema, dict):
        return set()
    found = set(schema) | ({schema["format"]} if "format" in schema else set())
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions"):
            found |= set().union(*map(keywords, value.values()))
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            found |= set().union(*map(keywords, value))
        elif key not in ("const", "enum"):
            found |= keywords(value)
    return found


if __name__ == "__main__":
    for schema in random_schemas(int(sys.argv[1]), int(sys.argv[2])):
        print(json.dumps(schema))
