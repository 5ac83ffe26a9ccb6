"""Data and scripts inside an HTML page: text in the data stays text, and no script runs but the page's own."""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable
from typing import Any


def inert(data: Any) -> str:
    """JSON for a script element, which no text in it can end.

    >>> inert({"text": "</script>"})
    '{"text": "\\\\u003c/script\\\\u003e"}'
    """
    return json.dumps(data).translate({ord(character): f"\\u{ord(character):04x}" for character in "<>&"})


def packed(content: bytes) -> str:
    """Bytes, compressed by zlib, in base64."""
    return base64.b64encode(zlib.compress(content, 9)).decode()


def allowed(scripts: Iterable[str]) -> str:
    """The hashes of scripts, as a content security policy names those that may run."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return " ".join(f"'sha256-{digest}'" for digest in hashes)
