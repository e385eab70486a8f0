"""``python -m tests.helpers.page_glossary``: writes the words that the debugger's page explains, from the
glossary of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRITTEN = ROOT / "fsm_agent" / "debug" / "web" / "static" / "glossary.js"
HEAD = (
    "// Made from docs/glossary.md (python -m tests.helpers.page_glossary): words that the page explains.\n"
)
WORDS = (
    "turn", "state", "event", "line", "rung", "ladder", "row", "guard", "counter", "limit", "cap", "flag", "move",
    "visit", "block", "call block", "iteration", "exit reason", "outcome", "effect class", "in doubt", "fork", "child",
    "position", "hold", "wire", "macro", "prepaid", "patience", "logpoint",
)  # fmt: skip


def glossary_script() -> str:
    """Return the page's module."""
    rows: dict[str, str] = {}
    counters: list[str] = []
    for line in (ROOT / "docs" / "glossary.md").read_text().splitlines():
        if found := re.fullmatch(r"\| (.+?) \| (.+) \|", line.strip()):
            meaning = re.sub(r" \([\w/]+\.py\)", "", found[2].replace("`", ""))
            rows |= {word.strip("`"): meaning for word in found[1].split(", ")}
            if re.fullmatch(r"`[a-z_]+`", found[1]):
                counters.append(found[1].strip("`"))
    chosen = {word: rows[word] for word in (*WORDS, *counters)}
    return f"{HEAD}export const GLOSSARY = {json.dumps(chosen, indent=2, ensure_ascii=False)};\n"


if __name__ == "__main__":
    WRITTEN.write_text(glossary_script())
