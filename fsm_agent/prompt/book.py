"""The system prompt of a session: built once from its layers, then the same bytes until one of its inputs
changes.

An agent without built-in tools has no business with the machine or the folder: the provider gets the caller's
``system_prompt`` and nothing of ours beside it; without one, words and rules that say nothing of the machine.
Settings bring the machine and the project's files back. With built-in tools all layers are there.

Layers come in three tiers, the most lasting first, so that a cache keeps as much as it can: stable (identity,
guidance, skills, place), context (the caller's message, the project's files), volatile (memory, user profile,
external memory, date). The last are no inputs: what is remembered, and the day, are frozen when the prompt is
built. (Why: decisions 23 and 112.)"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fsm_agent.prompt import guidance
from fsm_agent.prompt.machine import system_line
from fsm_agent.prompt.project import project
from fsm_agent.prompt.readers import Reading, cap_of, read
from fsm_agent.prompt.skills import Skills, find_skills
from fsm_agent.settings.model import Prompt as PromptSettings

log = logging.getLogger(__name__)

SOUL = "SOUL.md"
"""The agent's identity, in the home directory."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is remembered, ready for the prompt. ``whole`` is false when a memory gave no answer."""

    memory: str = ""
    user: str = ""
    external: str = ""
    notices: tuple[str, ...] = ()
    whole: bool = True


async def nothing() -> Recalled:
    """Remember nothing."""
    return Recalled()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a prompt is made from. ``recall`` is asked only when one is built. ``window`` in tokens.
    ``speaker``: the agent whose prompt it is, where it is not the one that the session began with.
    ``built_in``: it has tools of ours. ``extensions``: lines of the prompt by the name of the extension that
    adds them."""

    home: Path
    workdir: Path
    settings: PromptSettings
    identity: str | None = None
    built_in: bool = True
    tools: tuple[str, ...] = ()
    model: str = ""
    window: int | None = None
    speaker: str = ""
    recall: Callable[[], Awaitable[Recalled]] = nothing
    extensions: Mapping[str, str] = field(default_factory=dict)

    @property
    def machine(self) -> bool:
        """Say whether directory, system and date are named."""
        return self.built_in if self.settings.machine is None else self.settings.machine

    @property
    def context_files(self) -> bool:
        """Say whether the project's files are read."""
        return self.built_in if self.settings.context_files is None else self.settings.context_files

    @property
    def rules(self) -> bool:
        """Say whether the model reads our advice on how to work."""
        return self.built_in or self.identity is None


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """The bytes that are sent, and a digest of every input they were made from, by the layer's name."""

    text: str
    inputs: Mapping[str, str]


@dataclass(slots=True)
class _Read:
    """The layers that count as inputs, in order, and lines for people about them."""

    layers: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


async def prompt_of(
    kept: dict[str, StoredPrompt], sources: Sources, system_message: str | None, now: float
) -> tuple[str, tuple[str, ...]]:
    """The prompt to send, and lines for people when it was just built. ``kept`` holds a session's prompts,
    one for each message of the caller; one in which a memory is missing is not kept, so that the next turn
    asks again. ``now`` in seconds since the epoch."""
    read_now = _inputs(sources, system_message or "")
    key = f"{sources.speaker}: {system_message or ''}" if sources.speaker else system_message or ""
    inputs = {
        name: hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        for name, text in read_now.layers.items()
    }
    if (stored := kept.get(key)) is not None and stored.inputs == inputs:
        return stored.text, ()
    if stored is not None:
        changed = sorted(name for name in inputs if inputs[name] != stored.inputs.get(name))
        log.info("the system prompt was built again; changed: %s", ", ".join(changed))
    recalled = await sources.recall()
    made = StoredPrompt(_joined(read_now.layers, recalled, now if sources.machine else None), inputs)
    if recalled.whole:
        kept[key] = made
    else:
        kept.pop(key, None)
    return made.text, (*read_now.notices, *recalled.notices)


def _inputs(sources: Sources, system_message: str) -> _Read:
    settings, found = sources.settings, _Read()
    tools = sources.tools if sources.rules else ()
    cap = cap_of(sources.window, settings.context_file_chars)
    skills = find_skills(sources.home, sources.workdir) if "skill_view" in tools else Skills()
    enforced = tools if settings.enforce_tool_use == "auto" else sources.tools
    enforce = guidance.enforcement(settings.enforce_tool_use, sources.model, enforced)
    found.layers = {
        "identity": _identity(sources, cap, found.notices),
        "working": guidance.working(tools) if sources.rules else "",
        "tools": guidance.tool_notes(tools if sources.built_in else ()),
        "steer": guidance.STEER if tools else "",
        "enforcement": enforce,
        "skills": guidance.skills_index(skills.found, tools),
        "environment": guidance.environment(
            system_line(os.environ), str(sources.workdir), platform.python_version()
        )
        if sources.machine
        else "",
        "platform": guidance.platform_hint(
            settings.platform, settings.platform_hint, replace=settings.replace_platform_hint
        ),
        "system message": system_message,
        "project": _project(sources, cap, found.notices),
        **{f"extension {name}": text for name, text in sources.extensions.items()},
    }
    found.notices += skills.notices
    return found


def _identity(sources: Sources, cap: int, notices: list[str]) -> str:
    """The caller's own words, else SOUL.md, else the default. SOUL.md is for the agent of this home."""
    if sources.identity is not None:
        return sources.identity
    if not sources.built_in:
        return guidance.PLAIN_IDENTITY
    soul: Reading = read(sources.home / SOUL, SOUL, cap)
    notices += [soul.notice] if soul.notice else []
    return soul.text if soul.text and soul.usable else guidance.IDENTITY


def _project(sources: Sources, cap: int, notices: list[str]) -> str:
    if not sources.context_files:
        return ""
    found = project(sources.workdir, cap)
    notices += found.notices
    return f"# Instructions of this project\n\n{found.text}" if found.text else ""


def _joined(layers: Mapping[str, str], recalled: Recalled, now: float | None) -> str:
    return "\n\n".join(text for part in _ordered(layers, recalled, now) if (text := part.strip()))


def _ordered(layers: Mapping[str, str], recalled: Recalled, now: float | None) -> Iterator[str]:
    yield from layers.values()
    yield recalled.memory
    yield recalled.user
    yield recalled.external
    if now is not None:
        yield f"Date: {time.strftime('%A, %Y-%m-%d', time.localtime(now))}"
