"""The primary provider and its fallbacks: which is in use, with which key, and when the primary returns."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fsm_agent.conversation.effects import Rekey, Runtime, Switched
from fsm_agent.errors import ConfigError
from fsm_agent.providers.catalog import LearnedFacts, ModelFacts
from fsm_agent.providers.choose import Choice
from fsm_agent.providers.credentials import LONGEST, CredentialEntry, CredentialSource, KeyPool
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.settings import Settings
from fsm_agent.support.threads import in_daemon_thread

FALLBACK_KEYS = ("model", "base_url", "api_key", "api_mode", "context_window")
PortFactory = Callable[[Choice], ModelPort]
Chooser = Callable[..., Choice]
"""``fsm_agent.providers.choose.choose`` for a fixed environment; options of the model remain arguments."""


@dataclass(slots=True)
class Backend:
    """One entry of the chain."""

    choice: Choice
    keys: KeyPool
    port: ModelPort
    streaming: bool = True

    @property
    def named(self) -> tuple[str, str]:
        """Return the provider and the model."""
        return self.choice.profile.name, self.choice.model

    @property
    def identity(self) -> tuple[object, str]:
        """Return address and model. A port without an address is equal only to itself."""
        return (self.choice.base_url or self.port, self.choice.model)


class Backends:
    """The fallback chain. Within a turn the index only moves forward. A new turn returns to the primary
    unless it is cooling down, and applies the facts ``learned`` about each model."""

    def __init__(
        self,
        primary: Backend,
        fallbacks: Sequence[Backend],
        settings: Settings,
        clock: Clock,
        learned: LearnedFacts,
    ) -> None:
        self._chain, self._learned = [primary, *fallbacks], learned
        self._index = 0
        self._settings, self._clock = settings, clock
        self._primary_ready_at = 0.0

    @property
    def current(self) -> Backend:
        """Return the model in use."""
        return self._chain[self._index]

    @property
    def chain(self) -> Sequence[Backend]:
        """The primary and its fallbacks."""
        return tuple(self._chain)

    def ports(self) -> list[ModelPort]:
        """Return the ports of all models of the chain."""
        return [backend.port for backend in self._chain]

    async def new_turn(self) -> tuple[Runtime, str]:
        """Return to the primary if it is ready, else add a notice. Return the runtime and the notice."""
        now, notice = self._clock.now(), ""
        self._learned.refresh()
        if self._index and now >= self._primary_ready_at:
            self._index = 0
        elif self._index:
            rest = self._primary_ready_at - now
            notice = (
                f"still on {self._name(self.current)}: {self._name(self._chain[0])} is resting for {rest:.0f}"
                " s more"
            )
        for backend in self._chain:
            backend.keys.new_turn(now, partial(self._learned.rests.until, *backend.named))
        problem = await self._use_key()
        return self.runtime(), "; ".join(filter(None, (notice, problem)))

    async def resume(self, before: Runtime) -> tuple[Runtime, str]:
        """Resume on the entry that the turn used in another process. If this chain has no such entry, use the
        primary and add a notice."""
        runtime, notice = await self.new_turn()
        wanted = (before.provider, before.model, before.base_url)
        for index, backend in enumerate(self._chain):
            at = backend.choice.runtime(primary=index == 0)
            if (at.provider, at.model, at.base_url) == wanted:
                self._index, backend.streaming = index, backend.streaming and before.streaming
                problem = await self._use_key()
                return replace(self.runtime(), window=before.window), "; ".join(
                    filter(None, (notice, problem))
                )
        was, now = f"{before.provider}:{before.model}", self._name(self.current)
        other = f"the turn ran on {was}, which this agent does not have; it continues with {now}"
        return runtime, "; ".join(filter(None, (notice, other)))

    def runtimes(self) -> tuple[Runtime, ...]:
        """Return the runtime of each model in the chain by itself."""
        return tuple(self._alone(index) for index in range(len(self._chain)))

    def _alone(self, index: int) -> Runtime:
        known, assumed = self._chain[index].choice.runtime(primary=index == 0), self._settings.parts.assume
        runtime = self._learned.apply(known)
        return replace(
            runtime,
            vision=runtime.vision or "image" in assumed,
            audio=runtime.audio or "audio" in assumed,
            files=runtime.files or "file" in assumed,
        )

    def runtime(self) -> Runtime:
        """Return the turn's view of the chain."""
        backend, rest = self.current, self._usable_after()
        runtime = self._alone(self._index)
        return replace(
            runtime,
            streaming=runtime.streaming and backend.streaming,
            usable_fallbacks=len(rest),
            possible_rekeys=max(each.keys.possible_rekeys for each in (backend, *rest)),
            next_window=self._window(rest[0]) if rest else None,
        )

    @property
    def guess(self) -> str:
        """Return a line about the model in use if it is unknown and its window was not learned either."""
        there = self._learned.of(self.runtime())
        return "" if "window" in there else self.current.choice.guess

    def stop_streaming(self) -> Switched:
        """Request complete replies from the model in use from now on."""
        self.current.streaming = False
        return Switched(True, self.runtime())

    async def switch(self, cooldown: bool, wider_than: int | None) -> Switched:
        """Switch to the next different entry, with a larger window than ``wider_than`` if requested."""
        rest = [
            backend
            for backend in self._usable_after()
            if wider_than is None or (window := self._window(backend)) is None or window > wider_than
        ]
        if cooldown and self._index == 0:
            self.rest_primary(self._settings.primary_cooldown.rate_limit)
        if not rest:
            return Switched(False, self.runtime(), "no fallback is left")
        self._index = self._chain.index(rest[0])
        return Switched(True, self.runtime(), await self._use_key())

    def rest_primary(self, seconds: float) -> None:
        """Keep later turns on the fallback in use for this long."""
        self._primary_ready_at = max(self._primary_ready_at, self._clock.now() + seconds)

    async def rekey(self, request: Rekey) -> Switched:
        """Refresh the key in use if that can help, else switch to another key."""
        keys, refused = self.current.keys, ""
        if request.failure_class == "auth" and keys.refreshable():
            refused = await keys.refresh()
            refused = refused or await self._use_key()
            if not refused:
                return Switched(True, self.runtime(), "the credential was refreshed")
        failed = keys.in_use
        rotated = keys.rotate(self._clock.now(), request.failure_class, request.retry_after)
        lost = await self._keep_rest(failed)
        if rotated:
            unread = await self._use_key()
            return Switched(not unread, self.runtime(), unread or f"the next key is used{lost}")
        return Switched(False, self.runtime(), refused or "no other key is ready")

    async def _keep_rest(self, entry: CredentialEntry | None) -> str:
        """Store that a key rests, for other processes of the home. Return a note if that failed."""
        if entry is None or not isinstance(entry.source, str):
            return ""
        until = self._clock.now() + LONGEST if entry.dead else entry.ready_at
        try:
            await in_daemon_thread(
                partial(self._learned.rests.keep, *self.current.named, entry.source, until)
            )
        except OSError as error:  # includes the timeout of a lock
            return f" (that the last one rests is not kept: {type(error).__name__})"
        return ""

    async def rebuild(self) -> Switched:
        await self.current.port.rebuild()
        return Switched(True, self.runtime())

    async def _use_key(self) -> str:
        """Give the key in use to the port. Return the problem if the key's source fails; the provider's
        refusal follows."""
        try:
            self.current.port.use_key(await self.current.keys.key())
        except Exception as error:
            return f"the credential could not be read: {type(error).__name__}: {error}"
        return ""

    def _window(self, backend: Backend) -> int | None:
        """Return the maximum prompt in tokens, as known or learned."""
        return self._learned.apply(backend.choice.runtime()).window

    def _usable_after(self) -> list[Backend]:
        """Return the remaining fallbacks that can be used, each entry once."""
        seen, rest = [self.current.identity], []
        for backend in self._chain[self._index + 1 :]:
            if backend.identity not in seen:
                seen.append(backend.identity)
                rest.append(backend)
        return rest

    @staticmethod
    def _name(backend: Backend) -> str:
        return f"{backend.choice.profile.name}:{backend.choice.model}"


def fallback_backends(
    specs: Sequence[Mapping[str, Any]] | None, choose: Chooser, settings: Settings, port: PortFactory
) -> tuple[list[Backend], list[str]]:
    """Build the entries of ``fallbacks=``. An entry without a usable key is left out with a notice. Raises
    ``ConfigError`` for a malformed one."""
    backends, notices = [], []
    for number, spec in enumerate(specs or (), 1):
        if not isinstance(spec, Mapping) or "model" not in spec:
            raise ConfigError(
                f"fallback {number} is not usable",
                spec,
                f"a dict with model and optionally {', '.join(FALLBACK_KEYS[1:])}",
            )
        if unknown := sorted(set(spec) - set(FALLBACK_KEYS)):
            raise ConfigError(f"fallback {number} has an unknown key", unknown[0], ", ".join(FALLBACK_KEYS))
        try:
            backends.append(make_backend(dict(spec), choose, settings, port))
        except ConfigError as error:
            if not str(error).startswith("no key"):
                raise
            notices.append(f"fallback {number} is left out: {error}")
    return backends, notices


def make_backend(spec: Mapping[str, Any], choose: Chooser, settings: Settings, port: PortFactory) -> Backend:
    """Build one entry from the user's options. ``model`` may be a ``ModelPort``, which is used as it is."""
    model, given = spec["model"], spec.get("api_key")
    rng = random.Random(settings.backoff.seed)  # noqa: S311 - a choice among keys, not a secret
    if hasattr(model, "call"):
        profile = PROFILES["scripted"]
        facts = ModelFacts(window=spec.get("context_window"), reads=profile.reads)
        choice = Choice(profile, "scripted", None, (), facts, "a model port was given")
        return Backend(choice, KeyPool(given, settings.credential, rng), model)
    choice = choose(**spec)
    keys = given if isinstance(given, CredentialSource) else choice.keys
    return Backend(choice, KeyPool(keys, settings.credential, rng), port(choice))
