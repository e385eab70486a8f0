"""The prose of the project, checked by proselint with the word list of ``docs/style.md``.

``python -m tests.helpers.prose [FILE...]`` prints the findings in these files, by default in all pages and sources.
``--check`` fails if there is one."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from proselint.checks import __register__ as published
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, types
from proselint.tools import LintFile

from tests.helpers.sources import ROOT, text

STYLE = "docs/style.md"
PAGES = (
    "*.md", "docs/*.md", "docs/behaviours.toml", "docs/api/*.md", "examples/*.md", "benchmarks/*.md",
    "editors/**/*.md",
)  # fmt: skip
GENERATED = {STYLE, "docs/behaviours.md", "docs/commands.md", "docs/settings.md"}
"""Pages that are made from the Python sources and ``behaviours.toml``, which are checked themselves."""
PACKAGES = ("fsm_agent", "states/fsm_agent_states", "tests", "examples", "benchmarks", "docs/site")
BROWSER = ("fsm_agent/**/*.js", "fsm_agent/**/*.html")
"""What runs in a browser. All of it is checked, names included, but not the libraries of others."""
LIBRARIES = "vendor"
QUOTES = ROOT / "tests" / "house" / "test_prose.py"
"""Tests the check, with words that it must find."""
CHECKS = {
    "house": True, "cliches": True, "lexical_illusions": True, "malapropisms": True, "mondegreens": True,
    "nonwords": True, "redundancy": True, "spelling": True,
}  # fmt: skip
WORDS_ONLY = {"house": True}
"""For sources: strings in them are pieces of sentences, which the published checks misread."""
CODE = re.compile(
    r"^( *)(`{3,})[^\n]*\n.*?^\1\2$|<!-- table of.*?<!-- end of table -->|<!--.*?-->|<[^<>\n]+>|(?P<ticks>`+)[^`]+?(?P=ticks)|(?<=\])\([^()\s]*\)|https?://\S+"
    r"|“[^”\n]*”|~~.*?~~|[\w./-]+\.(?:py|md|toml)\b|\bpython -m [\w.]+",
    re.MULTILINE | re.DOTALL,
)
"""What is not prose on a page: blocks, tables made from the sources, spans of code, comments, tags, targets of
links, quotations."""
TAG = re.compile(r"<[^<>\n]+>")
ENTRY = re.compile(r"^\| `(.+?)` \| (.+) \|$", re.MULTILINE)


class Finding(NamedTuple):
    """A word to replace, and where it is."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def word_list() -> dict[str, str]:
    """What to avoid, as regular expressions, and what to write instead."""
    entries = ENTRY.findall(text(STYLE).partition("## Word list\n")[2])
    return {avoid.replace("\\|", "|"): write for avoid, write in entries}


@cache
def prepare() -> None:
    """Register the published checks and the word list, once in a process."""
    message = "write “{}” instead of “{}”"
    flags = CheckFlags(allow_quotes=True)
    registry = CheckRegistry()
    registry.register_many(published)
    registry.register(Check(types.PreferredForms(word_list()), path="house", message=message, flags=flags))


def findings(path: str, content: str, checks: Mapping[str, bool] = CHECKS) -> Iterator[Finding]:
    """The findings in a text, with the lines of ``content``."""
    prepare()
    content = content.encode("utf-8", "replace").decode()  # the expressions cannot read half a surrogate pair
    if not content.strip():
        return
    for result in LintFile(path, content).lint({"max_errors": 10_000, "checks": dict(checks)}):
        # The linter puts a line break in front of the text and matches the character before a word.
        start, end = result.check_result.span
        if "\n\n" in content[max(0, start - 1) : end]:
            continue  # a heading and the first words below it are no repetition
        yield Finding(path, max(1, f"\n{content}".count("\n", 0, start + 1)), result.check_result.message)


def without_code(page: str) -> str:
    """The page with dots for everything that is not prose; lines keep their numbers."""
    return CODE.sub(lambda match: re.sub(r"[^\n]", "·", match[0]), page)


def prose_of_python(source: str) -> str:
    """The docstrings, comments, and strings with more than one word, each on its line."""
    lines: dict[int, list[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            for offset, line in enumerate(node.value.splitlines()):
                lines.setdefault(min(node.lineno + offset, node.end_lineno or node.lineno), []).append(line)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines.setdefault(token.start[0], []).append(token.string.lstrip("# "))
    last = max(lines, default=0)
    return without_code("\n".join(" · ".join(lines.get(number, ())) for number in range(1, last + 1)))


def pages() -> list[str]:
    """The pages that are written by hand."""
    found = {path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(found - GENERATED)


def sources() -> list[str]:
    """The Python files whose docstrings, comments, and strings are checked, and the scripts of pages."""
    found = {path for package in PACKAGES for path in (ROOT / package).rglob("*.py")} - {QUOTES}
    found |= {path for name in BROWSER for path in ROOT.glob(name) if LIBRARIES not in path.parts}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def findings_in(path: str) -> Iterator[Finding]:
    """The findings in a file of the project: a page or a source."""
    if path.endswith(".py"):
        return findings(path, prose_of_python(text(path)), WORDS_ONLY)
    if path.endswith((".js", ".html")):
        return findings(path, TAG.sub("·", text(path)), WORDS_ONLY)
    return findings(path, without_code(text(path)))


def main(arguments: list[str]) -> int:
    files = [name for name in arguments if name != "--check"] or [*pages(), *sources()]
    found = [one for name in files for one in findings_in(name)]
    for one in found:
        print(one)
    print(f"prose: {len(found)} findings in {len(files)} files")
    return int("--check" in arguments and bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
