"""``python -m docs.site.search SITE``: order what the search of a built site finds, guides first.

The search prefers words in titles, then words near the beginning of a title, and keeps the order of its
index for the rest. So the index gets the order of a reader's questions, and the title of a member or of a
setting says what it is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

REFERENCE = ("docs/api/", "docs/settings.html", "docs/commands.html")
"""Pages that name everything; a reader who asks for a subject wants the guide that explains it."""
CONTRIBUTING = ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "benchmarks/", "docs/style", "docs/glossary")
MEMBER = re.compile(r"#fsm_agent(?:\.[a-z_]\w*)*\.([A-Z]\w*\.\w+)$")


def ordered(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries with guides first, then the reference, then the pages of contributors."""
    return sorted((titled(item) for item in items), key=lambda item: _place(item["location"]))


def titled(item: dict[str, Any]) -> dict[str, Any]:
    """Return the entry with a title that says whose member it is, or that it is a setting."""
    location = item["location"]
    if member := MEMBER.search(location):
        return {**item, "title": f"Reference: {member[1]}"}
    if location.startswith("docs/settings.html#"):
        return {**item, "title": f"Settings: {item['title']}"}
    return item


def _place(location: str) -> int:
    return 1 if location.startswith(REFERENCE) else 2 if location.startswith(CONTRIBUTING) else 0


def main(site: Path) -> None:
    path = site / "search.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**index, "items": ordered(index["items"])}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
