"""Values as JSON, and back.

Bytes become an object `{"base64": …}`, which is read as bytes again. NaN and infinity become text, and a
narrow integer or float a plain one; they stay so on the way back.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

from antiphon.values import Value


def json_value(value: Any) -> Any:
    """A value as JSON can express it.

    >>> json_value({"a": b"x"}) {'a': {'base64': 'eA=='}}
    """
    match value:
        case dict():
            return {key: json_value(item) for key, item in value.items()}
        case list():
            return [json_value(item) for item in value]
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case float() if not math.isfinite(value):
            return str(value)
    return value


def json_text(value: Value) -> bytes:
    """A value as JSON text in UTF-8, without spaces."""
    return json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":")).encode()


def parse_json(text: bytes | str) -> Any:
    """The value of a `json_text`; raise ValueError unless it is JSON."""
    return json.loads(text, object_hook=_with_bytes, parse_constant=_refused)


def _with_bytes(read: dict[str, Any]) -> Any:
    if len(read) == 1 and isinstance(text := read.get("base64"), str):
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return read
    return read


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")
