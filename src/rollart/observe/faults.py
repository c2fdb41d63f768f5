"""Faults of a file that a program wrote and cannot read again, in words."""

import json


def describe_fault(error: BaseException) -> str:
    """Say what is wrong with a text of JSON by the error that reading it raised."""
    match error:
        case json.JSONDecodeError():
            line = f"line {error.lineno}, " if error.lineno > 1 else ""
            return f"no whole JSON: it breaks off or errs at {line}column {error.colno}"
        case UnicodeDecodeError():
            return f"no text: byte {error.start} is not UTF-8"
        case KeyError():
            return f"{error.args[0]!r} is missing"
        case TypeError() | AttributeError():
            return "a value is of another kind than is written there"
        case OSError():
            return error.strerror or str(error)
        case _:
            return str(error)
