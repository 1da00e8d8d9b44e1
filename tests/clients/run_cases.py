"""Runs the test functions of one file in the environment of its client, which has no pytest. Writes as JSON, for each
function, null or what went wrong."""
import importlib.util
import json
import sys
import traceback
from pathlib import Path


def outcome(test):
    try:
        test()
    except Exception:
        return traceback.format_exc()
    return None


def main():
    source, results = Path(sys.argv[1]), Path(sys.argv[2])
    spec = importlib.util.spec_from_file_location(source.stem, source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = {name: value for name, value in vars(module).items() if name.startswith("test_") and callable(value)}
    results.write_text(json.dumps({name: outcome(test) for name, test in tests.items()}))


if __name__ == "__main__":
    main()
