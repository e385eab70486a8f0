"""Runs the blocks of a page from top to bottom, as a reader would who types all of them in one folder.

All Python blocks share one namespace. Each console line runs in a shell with the variables exported so far.
A block with a title is a file. The output of a block is shown in a ``text`` block right behind it, or below
the command; there ``…`` matches anything, and on a line of its own any number of lines."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

from fsm_agent.cli.simulate import copy_examples
from fsm_agent.testing import call, text, tools

ROOT = Path(__file__).parents[2]
INFO = re.compile(r'(?P<language>\w+)(?: title="(?P<title>[^"]+)")?[ \t]*$\n', re.MULTILINE)


def documents(text: str) -> list[object]:
    """JSON: one document, or one a line."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


READERS: dict[str, Callable[[str], object]] = {
    "json": documents, "toml": tomllib.loads, "yaml": yaml.safe_load,
}  # fmt: skip
PROGRAMS = {
    "fsm-agent": "-m fsm_agent",
    "python": "",
    "pytest": "-m pytest -p no:cacheprovider -p no:xdist -p no:randomly",
}
COMMAND = re.compile(r"^\$ (.*(?:\\\n.*)*)$", re.MULTILINE)
EXAMPLES = "fsm-agent examples"
"""The command without which a page cannot use them; it is run also where no other is."""
OF_THE_CLONE = ("examples", "tests", "docs", "benchmarks")
"""What of a clone can be imported, and is not there where a reader has nothing but the package."""


@contextlib.contextmanager
def out_of_the_clone(folder: Path) -> Iterator[None]:
    """Work in a folder from which nothing of this repository can be imported but its packages, and forget what was
    imported from it."""
    path, hidden = list(sys.path), {}
    for name in [one for one in sys.modules if one.partition(".")[0] in OF_THE_CLONE]:
        hidden[name] = sys.modules.pop(name)
    known = set(sys.modules)
    places = [place for place in path if place and Path(place).resolve() != ROOT]
    sys.path[:] = [str(folder), *places]
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)) or name in (
                "page",
                "examples",
            ):
                del sys.modules[name]
        sys.modules.update(hidden)


class PageBlocks:
    """The blocks of one page, and the folder that they are run in. ``namespace``: what its Python defines.

    ``<!-- skip: why -->`` above a block leaves it out; the reasons are in ``skipped``. Without ``commands``
    nothing is started, and the output below commands is ignored."""

    def __init__(self, page: Path, folder: Path, *, commands: bool = True) -> None:
        self.page, self.folder, self.commands = page, folder, commands
        self.skipped: list[str] = []
        self.namespace: dict[str, Any] = {}
        self._printed, self._end = "", 0
        self._reason = ""
        self._python = PythonEvaluator()
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> list[str]:
        """Run all of them; return the languages of those that were run. Raises ``AssertionError`` for what
        is printed otherwise than the page shows, and whatever a block raises."""
        document = Document.parse(str(self.page), self._regions)
        module = types.ModuleType("page")
        document.namespace = self.namespace = module.__dict__
        with out_of_the_clone(self.folder):
            sys.modules["page"] = module  # where dataclasses look for theirs
            for example in document.examples():
                example.evaluate()
        return [
            str(region.lexemes.get("language"))
            for _, region in document.regions
            if "source" in region.lexemes
        ]

    def _regions(self, document: Document) -> Iterable[Region]:
        for region in DirectiveInHTMLCommentLexer("skip")(document):
            region.parsed, region.evaluator = region.lexemes["arguments"], self._skip
            yield region
        for region in RawFencedCodeBlockLexer(info_pattern=INFO)(document):
            region.parsed, region.evaluator = region.lexemes["source"], self._evaluate
            yield region

    def _skip(self, example: Example) -> None:
        self._reason = str(example.parsed).strip()

    def _evaluate(self, example: Example) -> None:
        if self._reason:
            self.skipped.append(self._reason)
            self._reason = ""
            return
        language, title = example.region.lexemes["language"], example.region.lexemes.get("title")
        where = f"{self.page.name}:{example.line}"
        if title:
            READERS.get(language, str)(str(example.parsed))
            (self.folder / title).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / title).write_text(example.parsed, encoding="utf-8")
        elif language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self._python(example)
            self._printed, self._end = out.getvalue(), example.region.end
        elif language == "text":
            if self._end and not example.document.text[self._end : example.region.start].strip():
                same(self._printed, example.parsed, where)
        elif language == "console":
            for command, shown in commands(example.parsed):
                if self.commands:
                    same(self._shell(command, where), shown, f"{where}: {command}")
                elif command.partition("#")[0].strip() == EXAMPLES:
                    with contextlib.redirect_stdout(io.StringIO()):
                        copy_examples("examples")
        else:
            READERS[language](example.parsed)

    def reader(self) -> dict[str, str]:
        """The variables of a reader who has the programs of the pages on the path."""
        programs = self.folder.parent / "bin"
        programs.mkdir(exist_ok=True)
        for name, words in PROGRAMS.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            (programs / name).chmod(0o755)
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "states")]),
        }

    def _shell(self, command: str, where: str) -> str:
        env = self.reader() | {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
        exported = shlex.quote(str(self.folder.parent / "exported"))
        script = f"[ -f {exported} ] && . {exported}\n{command}\nexport -p > {exported}"
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        bash = ["bash", "-e", "-o", "pipefail", "-c", script]
        done = subprocess.run(bash, cwd=self.folder, env=env, timeout=240, **options)
        assert done.returncode == 0, f"{where}: {command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what is shown below it."""
    found = list(COMMAND.finditer(block))
    for match, following in zip(found, [*found[1:], None], strict=True):
        end = len(block) if following is None else following.start()
        yield match[1], block[match.end() : end].strip("\n")


def same(printed: str, shown: str, where: str) -> None:
    """Raise ``AssertionError`` unless what is shown, with ``…`` for anything, is what was printed. Nothing
    shown is nothing said."""
    if not shown.strip():
        return
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else re.escape(line.rstrip()).replace("…", ".*?") + r"\n"
        for line in shown.strip("\n").splitlines()
    )
    text = "".join(line.rstrip() + "\n" for line in printed.strip("\n").splitlines())
    assert re.fullmatch(pattern, text), f"{where}: the page shows\n{shown}\nand this is printed:\n{printed}"


def environment(url: str, home: Path) -> dict[str, Any]:
    """A fresh home, and keys with the addresses of a server that answers in the place of every provider."""
    base = url.removesuffix("/v1")
    names = ("OPENAI", "ANTHROPIC", "OPENROUTER", "GEMINI", "MISTRAL", "OLLAMA", "LLAMACPP", "LMSTUDIO")
    addresses = {f"{name}_BASE_URL": f"{base}/v1" for name in names}
    keys = {f"{name}_API_KEY": "key-of-a-test" for name in names[:5]}
    return {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), **addresses, **keys}


def provider(received: Any) -> Any:
    """Asks for the weather with a tool when there is one, and answers in a sentence, or as
    it is asked to."""
    body = received.body
    rows = body.get("messages") or body["input"]
    names = {one.get("name") or one["function"]["name"] for one in body.get("tools", ())}
    done = rows[-1].get("role") == "tool" or "tool_result" in str(rows[-1])
    if "You judge an answer" in str(body):
        return text('{"score": 1, "reason": "It names the weather."}')
    if "response_format" in body or "format" in body.get("text", {}):
        return text('{"name": "Bern", "people": 144000}')
    if "final_result" in names:
        return tools(call("final_result", {"name": "Bern", "people": 144000}))
    if "lookup" in names and not done:
        return tools(call("lookup", {"city": "Oslo"}))
    return text("It is sunny in Oslo." if done else "Hello! How can I help?")
