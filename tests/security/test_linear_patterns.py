"""Threat: text that keeps a regular expression busy. Every pattern of the package is held against inputs that are
made from its own structure; what RE2 matches needs no such test, and what its expressions may say is tested here."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import FrameType
from typing import Any

import pytest

import fsm_agent
import fsm_agent_states
from fsm_agent.support import texts, untrusted
from fsm_agent.support.redaction import SecretShape

OURS = (
    "fsm_agent.diagram",
    "fsm_agent.fsm.verify",
    "fsm_agent.debug.web.page",  # reads the picture that was just made
    "fsm_agent.testing",
    "fsm_agent.providers.offline",  # reads what the user at the keyboard says to it
    "fsm_agent.debug.dap",
    "fsm_agent.debug.core.breakpoints",  # these two read what the user writes into a debugger
    "fsm_agent.tools.decorator",  # reads the functions of the user's program
    "fsm_agent.toolsets.mcp.process",  # reads the user's configuration
    "fsm_agent.cli.diagram",  # reads an option
)
"""Rooms whose patterns read only what this program or its user wrote, and one that is held against them elsewhere."""
WAYS = ("search", "match", "fullmatch", "sub", "split", "findall", "finditer")
GIVEN = tuple(f"re.{way}" for way in WAYS)
Key = tuple[str | bytes, int, str]
FLAVOURS = ("a1", "-_", " \n", "<A")
"""Which characters of a class an input is made of, by turns."""
SMALL, LARGE = 4_000, 16_000
"""Characters. From one to the other a linear pattern takes four times as long, a quadratic one sixteen times."""
RATIO, IGNORED = 9.0, 0.03
"""The largest growth that passes, and CPU seconds below which nothing is said of growth."""
ENDLESS = 3
"""Seconds after which a pattern is stopped."""


def modules() -> Iterator[str]:
    for package in (fsm_agent, fsm_agent_states):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(OURS) and not found.name.endswith("__main__"):
                yield found.name


def patterns_of(module: str) -> dict[Key, str]:
    """Every pattern that the module's names hold, and every literal that it gives to ``re``; with their flags,
    and the ways in which they are used: a search begins at every place, a match at one."""
    loaded = importlib.import_module(module)
    tree = ast.parse(Path(str(loaded.__file__)).read_text())
    used: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in WAYS:
            used.setdefault(node.value.id, set()).add(node.attr)
    found: set[Key] = {
        (one.pattern, one.flags, way)
        for name, value in vars(loaded).items()
        for one in held(value)
        for way in (used.get(name, {"search"}) if isinstance(value, re.Pattern) else {"search"})
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in GIVEN and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str | bytes):
                way = ast.unparse(node.func).removeprefix("re.")
                found.add((first.value, re.compile(first.value).flags, way))
    return dict.fromkeys(found, module)


def held(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, SecretShape):
        yield value.compiled
    elif isinstance(value, dict):
        yield from held(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from held(one)


# Inputs from the structure of a pattern


def evil(pattern: str | bytes, flags: int) -> Iterator[Callable[[int], str]]:
    """Functions from a size to a text: each beginning of the pattern again and again, and each repeated part
    after its beginning."""
    items = list(
        parser.parse(pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern, flags & ~re.LOCALE)
    )
    seen = set()
    for flavour in FLAVOURS:
        for prefix, pump, suffix in shapes(items, flavour):
            if pump and (prefix, pump, suffix) not in seen:
                seen.add((prefix, pump, suffix))
                yield lambda size, a=prefix, b=pump, c=suffix: a + b * ((size - len(a)) // len(b)) + c


def shapes(items: list[Any], flavour: str) -> Iterator[tuple[str, str, str]]:
    for branch in branches(items):
        before = ""
        for item in branch:
            for pump in pumps(item, flavour):
                yield before, pump, "\0"
                yield "", before + pump, "\0"
            before += sample([item], flavour)
            yield "", before, "\0"


def branches(items: list[Any]) -> Iterator[list[Any]]:
    """The ways through a pattern, alternatives and groups opened."""
    ways: list[list[Any]] = [[]]
    for op, value in items:
        if op is sre.SUBPATTERN:
            inner = list(branches(list(value[-1])))
        elif op is sre.BRANCH:
            inner = [way for one in value[1] for way in branches(list(one))]
        else:
            inner = [[(op, value)]]
        ways = [way + more for way in ways for more in inner][:12]
    yield from ways


def pumps(item: tuple[Any, Any], flavour: str) -> Iterator[str]:
    op, value = item
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        if value[1] > 20:
            yield sample(list(value[2]), flavour)
        for part in list(value[2]):
            yield from pumps(part, flavour)
    elif op is sre.SUBPATTERN:
        for part in list(value[-1]):
            yield from pumps(part, flavour)
    elif op in (sre.ASSERT, sre.ASSERT_NOT):
        for part in list(value[1]):
            yield from pumps(part, flavour)
    elif op is sre.BRANCH:
        for one in value[1]:
            for part in list(one):
                yield from pumps(part, flavour)


def sample(items: list[Any], flavour: str) -> str:
    """A text that the items match, as far as that is easy to say."""
    text = ""
    for op, value in items:
        if op is sre.LITERAL:
            text += chr(value)
        elif op is sre.NOT_LITERAL:
            text += next(char for char in flavour + "ab" if ord(char) != value)
        elif op is sre.ANY:
            text += flavour[0]
        elif op is sre.IN:
            text += next((char for char in flavour + CHARACTERS if inside(char, value)), "")
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            text += sample(list(value[2]), flavour) * min(max(value[0], 1), 30)
        elif op is sre.SUBPATTERN:
            text += sample(list(value[-1]), flavour)
        elif op is sre.ATOMIC_GROUP:
            text += sample(list(value), flavour)
        elif op is sre.BRANCH:
            text += sample(list(value[1][0]), flavour)
    return text


CHARACTERS = (
    "".join(map(chr, range(32, 127))) + "\n\t\r\x1b\x08\u200b\u202e\u0e01\u05d0\U000e0041\U0001f3f4é中"
)


def inside(char: str, members: list[Any]) -> bool:
    negated = bool(members) and members[0][0] is sre.NEGATE
    return any(is_member(char, op, value) for op, value in members if op is not sre.NEGATE) != negated


def is_member(char: str, op: Any, value: Any) -> bool:
    if op is sre.LITERAL:
        return ord(char) == value
    if op is sre.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    categories = {"SPACE": r"\s", "WORD": r"\w", "DIGIT": r"\d"}
    word = str(value).removeprefix("CATEGORY_")
    return bool(re.match(categories[word.removeprefix("NOT_")], char)) != word.startswith("NOT_")


# Holding a pattern against them


class Endless(Exception):
    """A pattern that did not come to an end."""


def seconds(compiled: re.Pattern[Any], text: str, way: str) -> float:
    given = text.encode("utf-8", "replace") if isinstance(compiled.pattern, bytes) else text

    def ring(number: int, frame: FrameType | None) -> None:
        raise Endless

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(ENDLESS)
    began = time.thread_time()
    try:
        if way in ("match", "fullmatch"):
            getattr(compiled, way)(given)
        else:
            for _ in compiled.finditer(given):
                pass
    except Endless:
        return float(ENDLESS)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return time.thread_time() - began


def slow_input(pattern: str | bytes, flags: int, way: str = "search") -> str:
    """The first input that takes too long, and how long; empty when none does."""
    compiled = re.compile(pattern, flags)
    for make in evil(pattern, flags):
        large = seconds(compiled, make(LARGE), way)
        if large > IGNORED:
            small = min(seconds(compiled, make(SMALL), way) for _ in range(2))
            large = min(large, seconds(compiled, make(LARGE), way))
            if large >= ENDLESS or large > max(IGNORED, RATIO * small):
                return f"{make(60)!r}: {small:.3f} s, then {large:.3f} s"
    return ""


@pytest.mark.slow
def test_no_pattern_of_the_package_takes_more_than_linear_time() -> None:
    every = {key: module for name in modules() for key, module in patterns_of(name).items()}
    assert len(every) > 100
    slow = {f"{module}: {key[0]!r}": found for key, module in every.items() if (found := slow_input(*key))}
    assert not slow, "\n".join(f"{where}\n    {found}" for where, found in slow.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern", [r"eyJ[\w-]{8,}\.", r"\s+\Z", r"(\d[\d,_]*) \+ \d", r"<title[^>]*>(.*?)</title>", r"(?:a|a)+b"]
)
def test_the_test_finds_patterns_that_are_known_to_be_slow(pattern: str) -> None:
    assert slow_input(pattern, re.compile(pattern, re.DOTALL).flags)


def test_what_reads_the_longest_texts_is_matched_by_re2() -> None:
    """An expression that RE2 does not take, such as one with look-around, is refused when it is compiled."""
    for _, expression in (*untrusted.WORDS, untrusted.TAGS):
        texts.search(expression, b"x")
    with pytest.raises(Exception, match="perl operator"):
        texts.search("(?=x)", b"x")
