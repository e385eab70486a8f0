"""The identity of a tool call: the same tool with the same arguments, in whatever order they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def signature(name: str, arguments: Mapping[str, Any]) -> str:
    """A hash of the name and the arguments as sorted compact JSON."""
    text = json.dumps([name, arguments], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
