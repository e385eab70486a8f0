"""Tests use public names: a private one that they read would have to stay as it is for no user's sake."""

from __future__ import annotations

import ast
import re

from tests.helpers.sources import ROOT, text, tree

PUBLIC = {"_asdict", "_replace", "_exit"}
"""Of named tuples, and of ``os``: private by their spelling alone."""
REASONS = {
    ("tests/agent/test_turns_at_once.py", "_queue"): "when a second message waits is said nowhere",
    ("tests/providers/test_clouds.py", "_get_session"): "the vendor's cache of an account has no other door",
    ("tests/sessions/test_postgres.py", "_raw"): "the connection that is cut off in the middle of a commit",
    ("tests/sessions/test_store.py", "_hand_over"): "what is handed over is on disk, and the tool not begun",
    ("tests/sessions/test_store.py", "_runner"): "leads to the same",
    ("tests/tools/test_tools_keys.py", "_idle"): "when a thread rests is said nowhere",
}
LOOKS_PRIVATE = re.compile(r"(?<!\bself)(?<!\bcls)(?<!super\(\))\._[a-z](?!sdict|eplace|xit)")
"""Files without it need not be parsed."""


def test_tests_read_no_private_names() -> None:
    found = {
        (str(path.relative_to(ROOT)), node.attr)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if LOOKS_PRIVATE.search(text(path))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and ast.unparse(node.value) not in ("self", "cls", "super()")
        and node.attr not in PUBLIC
    }
    assert found == set(REASONS)
