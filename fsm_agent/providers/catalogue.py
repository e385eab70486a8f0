"""What is known of models: how much they read and write at once, what they can read, how they think.

Two files beside this one say it: ``models.json``, made of the data that ``litellm`` keeps about models
(``make models``; its licence is in ``models.LICENSE``), and over it ``models.toml``, our own. Nothing is
fetched. What tokens cost is in ``fsm_agent.providers.prices``."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fsm_agent.conversation.parts import Kind

_HERE = Path(__file__).parent
_DATED = re.compile(r"(-\d{4}-\d{2}-\d{2}|-\d{8}|-latest)\Z")
_PLACED = re.compile(r"\A(?:[a-z]+-)?anthropic-|-v\d+(?::\d+)?\Z")
"""What Bedrock puts around the name of a model: who made it, perhaps where it runs, and a version."""
_OURS = "our models.toml"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of one model. ``window``: tokens of prompt that it takes, ``None`` when nobody can say;
    ``output``: tokens of its longest reply. ``reads``: what besides text, ``None`` for unknown. ``thinks``
    before it speaks, or can; ``efforts``: how much it can be asked to. ``schema``: takes a JSON schema for
    its answer. ``source``: where that is from; empty for a guess."""

    window: int | None = None
    output: int | None = None
    reads: frozenset[Kind] | None = None
    tools: bool | None = None
    thinks: bool | None = None
    schema: bool | None = None
    efforts: tuple[str, ...] = ()
    source: str = ""

    def can_read(self, kind: Kind) -> bool:
        """May this kind of content be sent? Where nobody knows, images are tried, because a refusal of them
        is mended; audio and files are not."""
        return kind == "image" if self.reads is None else kind in self.reads

    def words(self) -> str:
        """What is known, in one line for people."""
        if not self.source:
            return f"a guess: prompts of {self.window:,} tokens" if self.window else "nothing"
        reads = ", ".join(("text", *(f"{kind}s" for kind in sorted(self.reads or ()) if kind != "audio")))
        parts = (
            f"prompts of {self.window:,} tokens" if self.window else "",
            f"replies of {self.output:,}" if self.output else "",
            f"reads {reads}{' and audio' if 'audio' in (self.reads or ()) else ''}",
            "thinks" + (f" ({', '.join(self.efforts)})" if self.efforts else "") if self.thinks else "",
            "JSON schemas" if self.schema else "",
        )
        return f"{'; '.join(filter(None, parts))} (from {self.source})"


def facts_of(table: str, model: str) -> ModelFacts:
    """Return what is known of a model by the vendor's ``table``; a guess for one that nobody knows. In an
    aggregator's table, ``*``, the part of the name before the slash says the vendor, and what is behind a
    colon says nothing."""
    name = _key(model)
    if table == "*":
        maker, _, name = name.partition(":")[0].partition("/")
        table = _ours()["vendors"].get(maker, "")
    entry, source = _entry(table, name)
    if not entry:
        guesses = _ours()["guess"]
        return ModelFacts(window=guesses.get(table, guesses[""]))
    does = entry.get("does", ())
    return ModelFacts(
        window=entry.get("window"),
        output=entry.get("output"),
        reads=frozenset(entry.get("reads", ())),
        tools="tools" in does,
        thinks="thinks" in does,
        schema="schema" in does,
        efforts=tuple(entry.get("efforts", ())),
        source=source,
    )


def silence_of(model: str) -> float:
    """Seconds that this model may be silent at least, because it thinks (STR-02); 0 for one that speaks at
    once."""
    name = "-" + _key(model).rsplit("/", 1)[-1]
    return max((float(wait) for part, wait in _ours()["silence"].items() if f"-{part}" in name), default=0.0)


def _key(model: str) -> str:
    return model.lower().replace(".", "-")


def _entry(table: str, name: str) -> tuple[Mapping[str, Any], str]:
    """The entry under this name, or under the name without what Bedrock puts around it, and without a date or
    ``latest`` at its end."""
    listed, ours = _listed()["models"].get(table, {}), _ours()["models"].get(table, {})
    bare = _PLACED.sub("", name)
    for one in (name, bare, _DATED.sub("", bare)):
        if one in listed or one in ours:
            source = f"the catalogue, {_listed()['source']}" if one in listed else _OURS
            return {**listed.get(one, {}), **ours.get(one, {})}, source
    return {}, ""


@cache
def _listed() -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads((_HERE / "models.json").read_text(encoding="utf-8"))
    return read


@cache
def _ours() -> Mapping[str, Any]:
    return tomllib.loads((_HERE / "models.toml").read_text(encoding="utf-8"))
