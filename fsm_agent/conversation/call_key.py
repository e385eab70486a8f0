"""The identity of a tool call: the same tool with the same arguments, in whatever order they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def signature(name: str, arguments: Mapping[str, Any]) -> str:
    """A hash of the name and the arguments as sorted compact JSON."""
    return hashlib.sha256(_SORTED.encode([name, arguments]).encode("utf-8", "replace")).hexdigest()


_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
