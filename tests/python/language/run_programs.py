"""Runs programs, each in a process of its own, and writes what they print as a JSON list.

Standard input is a JSON list of {"name", "source", "argv"}. The processes are forked from this one, which has imported
the package named on the command line once.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import types
from typing import Any


def run(case: dict[str, Any]) -> dict[str, str]:
    """What one program prints, or how it failed."""
    sys.argv = [case["name"], *case["argv"]]
    out = io.StringIO()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(case["source"], case["name"], "exec"), module.__dict__)  # the programs under test
    except SystemExit as error:
        return {"error": f"exit {error.code}"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"out": out.getvalue()}


def main() -> None:
    """Runs all of them."""
    importlib.import_module(sys.argv[1])
    results = []
    for case in json.load(sys.stdin):
        with tempfile.TemporaryFile("w+") as answer:
            child = os.fork()
            if child == 0:
                json.dump(run(case), answer)
                answer.flush()
                os._exit(0)
            os.waitpid(child, 0)
            answer.seek(0)
            results.append(json.loads(answer.read() or '{"error": "the process ended"}'))
    json.dump(results, sys.stdout)


main()
