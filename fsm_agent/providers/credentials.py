"""API keys of one provider: a pool with refresh, rotation, and cooldowns.

A failed key rests for 5 minutes after a 401, for an hour after a 429 or 402, or for as long as the provider
says (CRED-05), in all processes of the home. A strategy chooses the ready key that a turn
starts with; by default the first. Each key is refreshed at most ``auth_refresh_max`` times per turn.
"""

# Key rests by digest, headers below the SDK, hosted tools as data. A resting key is stored by digest, so the
# file reveals nothing, and per model, because limits are per model. Keys under 16 characters are not stored,
# because they could be guessed. A single key is used even while it rests. Extra headers are added by a hook
# of the HTTP client, so the SDK's logs do not show them. The actions of a provider's hosted tools are a block
# of the message with its issuer, so an agent never gets a call for them.

# Each entry of the chain has its own keys. A switch to a fallback resets `rekeys`, retries, and repairs.
# Their limit is the largest pool of the chain, read once when the turn is prepared, because a limit that
# changes during a turn would be outside the proof. For a smaller pool, the guard "another key is ready"
# becomes false. If it stays true because Retry-After makes a key ready at once, the ladder continues to the
# fallback and the retries. The bound grows by fallbacks·rekeys.

from __future__ import annotations

import hashlib
import inspect
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from fsm_agent.errors import ConfigError
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.settings import ENV_PREFIX, Credential
from fsm_agent.support.files import HomeRows
from fsm_agent.support.installation import install_command
from fsm_agent.support.redaction import KEYS, PASSED_ON, keep_secret
from fsm_agent.support.threads import in_daemon_thread

# The environment of commands that a model runs: the user's own, without provider keys.
#
# Hidden are the variables that configure a known provider's account, those whose names end like key names,
# those that the config file names (``key_env``, ``${VAR}`` of an MCP server), and those that contain a key
# used by an agent of this process.


_KEY = "_API_KEY"
ACCOUNTS = (
    ENV_PREFIX,
    *sorted(
        {row.key_env.removesuffix(_KEY) + "_" for row in PROFILES.values() if row.key_env and row.needs_key}
    ),
)
"""Prefixes of the variables that configure a provider's account: ``OPENAI_``, ``ANTHROPIC_`` …"""
ENDS = ("API_KEY", "APIKEY", "_OAUTH_TOKEN", "_HEADERS")
KEY_VARIABLES: set[str] = set()
"""Names of hidden variables, besides those that are recognized by their form."""
SHORTEST = 8
"""Minimum characters of a key that is searched for in values; a shorter one is a placeholder like "none"."""


def hide_from_children(variables: Iterable[str] = (), keys: Iterable[str] = ()) -> None:
    """Hide these variables, and any whose values contain one of these keys, from every command that this
    process starts from now on. Mask the keys in everything that the process shows, logs, and exports."""
    KEY_VARIABLES.update(name for name in variables if name not in PASSED_ON)
    keep_secret(keys)


def keyless_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``environment`` without the variables that hold keys."""
    return {name: value for name, value in environment.items() if not _hidden(name, value)}


def _hidden(name: str, value: str) -> bool:
    return (
        name in KEY_VARIABLES
        or name.upper().startswith(ACCOUNTS)
        or name.upper().endswith(ENDS)
        or (name not in PASSED_ON and any(key in value for key in tuple(KEYS) if len(key) >= SHORTEST))
    )


@runtime_checkable
class CredentialSource(Protocol):
    """An object that provides a key and can renew it. Both methods may be async."""

    def get(self) -> Any:
        """Return the key to use now."""
        ...

    def refresh(self) -> Any:
        """Renew the key. Return ``False`` if that failed."""
        ...


ApiKey = str | CredentialSource | Sequence[str | CredentialSource] | None


@dataclass(slots=True)
class CredentialEntry:
    """A key of the pool. ``ready_at``: when it may be used again, in seconds since the epoch; ``dead``:
    never."""

    source: str | CredentialSource
    ready_at: float = 0.0
    dead: bool = False
    refreshes: int = 0
    turns: int = 0

    @property
    def refreshable(self) -> bool:
        """Whether the key can be renewed."""
        return not isinstance(self.source, str)

    async def key(self) -> str:
        """Return the key, and hide it from the commands of this process."""
        key = self.source if isinstance(self.source, str) else str(await _call_source(self.source.get))
        hide_from_children(keys=[key])
        return key


class KeyPool:
    """The keys in the order given. ``possible_rekeys`` bounds what one call block may try."""

    def __init__(self, keys: ApiKey, figures: Credential, rng: random.Random | None = None) -> None:
        self._entries = [CredentialEntry(source) for source in _sources(keys)]
        hide_from_children(keys=[entry.source for entry in self._entries if isinstance(entry.source, str)])
        self._figures = figures
        self._rng = rng or random.Random()  # noqa: S311 - a choice among keys, not a secret
        self._index = 0

    @property
    def possible_rekeys(self) -> int:
        """Return the maximum number of key changes and refreshes in one call block."""
        refreshes = sum(self._figures.auth_refresh_max for entry in self._entries if entry.refreshable)
        return refreshes + max(0, len(self._entries) - 1)

    def new_turn(self, now: float, rests: Callable[[str], float] = lambda key: 0.0) -> None:
        """Reset the refresh counts and select the ready key that the strategy prefers. ``rests``: returns
        until when a key rests according to other processes, in seconds since the epoch."""
        for entry in self._entries:
            entry.refreshes = 0
            if isinstance(entry.source, str):
                entry.ready_at = max(entry.ready_at, rests(entry.source))
        ready = [index for index, entry in enumerate(self._entries) if self._ready(entry, now)]
        if ready:
            self._index = self._preference(ready)
            self._entries[self._index].turns += 1

    def _preference(self, ready: list[int]) -> int:
        match self._figures.strategy:
            case "round_robin":
                started = any(entry.turns for entry in self._entries)
                return (
                    next((index for index in ready if index > self._index), ready[0]) if started else ready[0]
                )
            case "random":
                return self._rng.choice(ready)
            case "least_used":
                return min(ready, key=lambda index: self._entries[index].turns)
        return ready[0]

    async def key(self) -> str:
        """Return the key in use; empty for an empty pool."""
        return await self._entries[self._index].key() if self._entries else ""

    @property
    def in_use(self) -> CredentialEntry | None:
        """The entry of the key in use, or ``None``."""
        return self._entries[self._index] if self._entries else None

    def refreshable(self) -> bool:
        """Return whether the key in use can be refreshed once more in this turn."""
        entry = self.in_use
        return entry is not None and entry.refreshable and entry.refreshes < self._figures.auth_refresh_max

    def others(self, now: float) -> int:
        """Return the number of other keys that are ready."""
        return sum(self._ready(entry, now) for i, entry in enumerate(self._entries) if i != self._index)

    async def refresh(self) -> str:
        """Refresh the key in use. Return an empty string on success, else the problem."""
        entry = self._entries[self._index]
        entry.refreshes += 1
        try:
            renewed = await _call_source(entry.source.refresh) if not isinstance(entry.source, str) else False
        except Exception as error:
            return f"the credential could not be refreshed: {type(error).__name__}: {error}"
        return "the credential's refresh was refused" if renewed is False else ""

    def rotate(self, now: float, failure_class: str, retry_after: float | None) -> bool:
        """Rest the key in use and switch to the next one that is ready. Return whether there was one."""
        if not self._entries:
            return False
        entry = self._entries[self._index]
        entry.dead = failure_class == "auth_permanent"
        rest = self._figures.cooldown_auth if failure_class == "auth" else self._figures.cooldown_other
        entry.ready_at = now + (rest if retry_after is None else retry_after)
        for offset in range(1, len(self._entries)):
            index = (self._index + offset) % len(self._entries)
            if self._ready(self._entries[index], now):
                self._index = index
                return True
        return False

    @staticmethod
    def _ready(entry: CredentialEntry, now: float) -> bool:
        return not entry.dead and entry.ready_at <= now


def _sources(keys: ApiKey) -> list[str | CredentialSource]:
    several = isinstance(keys, Iterable) and not isinstance(keys, (str, CredentialSource))
    given: list[Any] = list(cast("Iterable[Any]", keys)) if several else [keys]
    found: list[str | CredentialSource] = []
    for key in given:
        if isinstance(key, (str, CredentialSource)):
            found.append(key)
        elif key is not None:
            raise ConfigError(
                "an API key has the wrong type",
                type(key).__name__,
                "a string, or an object with get() and refresh()",
            )
    return found


async def _call_source(function: Any) -> Any:
    """Call a method that may be async; run a blocking one in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function()
    answer = await in_daemon_thread(function)
    return await answer if inspect.isawaitable(answer) else answer


# Keys in the machine's keyring: ``keyring:<service>/<name>`` can replace a key in an argument, in the
# environment, and in the config file, which never contains a key.


PREFIX = "keyring:"
FORM = "keyring:<service>/<name>"


def is_kept(text: object) -> bool:
    """Return whether the text is a reference to a key in a keyring."""
    return isinstance(text, str) and text.strip().startswith(PREFIX)


def unkept(text: str) -> str:
    """Return the key that ``text`` refers to, or ``text`` itself. Raises ``ConfigError`` if the keyring does
    not have it."""
    text = text.strip()
    if not is_kept(text):
        return text
    service, _, name = text.removeprefix(PREFIX).rpartition("/")
    if not service or not name:
        raise ConfigError("this names no key of a keyring", text, FORM)
    if find_spec("keyring") is None:
        raise ConfigError("a key in a keyring needs keyring", text, install_command("keyring"))
    import keyring
    from keyring.errors import NoKeyringError

    try:
        key = (keyring.get_password(service, name) or "").strip()
    except NoKeyringError:
        raise ConfigError(
            "this machine has no keyring that can be used", text, "a key, or its variable"
        ) from None
    except Exception as error:  # each backend raises its own errors
        what = f"the keyring cannot be read ({type(error).__name__})"
        raise ConfigError(what, text, "a keyring that is unlocked") from None
    if not key:
        raise ConfigError("the keyring has no such key", text, f"keyring set {service} {name}")
    return key


# Resting keys of all processes of a home: the next process does not try a refused key first.
#
# Keys are stored as digests. A rest that begins in the future was written before the clock was set back, and
# is ignored.


RESTS = "key-rests.json"
LONGEST = 86_400.0
"""Maximum rest in seconds: a server that asks for more must not disable a key for good."""
SHORTEST_REST = 16
"""Minimum characters of a stored key; a shorter one is a placeholder, and could be guessed from its
digest."""
MOST, SLACK = 500, 60.0


@dataclass(frozen=True, slots=True)
class KeyRest:
    """A key of a provider that rests for one model, from ``at`` to ``until`` in seconds since the epoch."""

    provider: str
    model: str
    digest: str
    at: float
    until: float

    @property
    def subject(self) -> tuple[str, str, str]:
        """Return the provider, the model, and the digest of the resting key."""
        return self.provider, self.model, self.digest

    def is_of(self, model: str) -> bool:
        """Return whether the rest is for ``model``: ``<provider>:<model>``, its name, or empty for any."""
        return model in ("", self.model, f"{self.provider}:{self.model}")


class KeyRests:
    """The resting keys of a home. ``now``: the wall clock."""

    def __init__(self, home: Path, now: Callable[[], float]) -> None:
        self._rows, self._now = HomeRows(home / RESTS, "rests"), now
        self._rests: dict[tuple[str, str, str], KeyRest] = {}

    def refresh(self) -> None:
        """Reload the file; called at the start of each turn."""
        self._rests = {rest.subject: rest for rest in self._current_rests()}

    def all(self) -> tuple[KeyRest, ...]:
        """Return the current rests, as of the last ``refresh``."""
        return tuple(self._rests.values())

    def until(self, provider: str, model: str, key: str) -> float:
        """Return when a key may be used again, in seconds since the epoch; 0 if it does not rest."""
        rest = self._rests.get((provider, model, digest_of(key)))
        return rest.until if rest else 0.0

    def keep(self, provider: str, model: str, key: str, until: float) -> None:
        """Store that a key rests; drop expired rests. Raises ``OSError`` and ``TimeoutError``."""
        now = self._now()
        if len(key) < SHORTEST_REST or until <= now:
            return
        new = KeyRest(provider, model, digest_of(key), now, min(until, now + LONGEST))
        with self._rows.alone():
            rests = {rest.subject: rest for rest in self._current_rests()} | {new.subject: new}
            newest = sorted(rests.values(), key=lambda rest: rest.at)[-MOST:]
            self._rows.write(map(asdict, newest))
            self._rests = rests

    def forget(self, model: str = "") -> tuple[KeyRest, ...]:
        """Delete the rests of a model's keys, or all; return the deleted ones. Raises ``OSError`` and
        ``TimeoutError``."""
        if not self._rows.path.exists():
            return ()
        with self._rows.alone():
            there = list(self._current_rests())
            self._rows.write(asdict(rest) for rest in there if not rest.is_of(model))
        return tuple(rest for rest in there if rest.is_of(model))

    def _current_rests(self) -> Iterator[KeyRest]:
        now = self._now()
        for row in self._rows.read():
            try:
                rest = KeyRest(**row)
                texts = all(isinstance(text, str) for text in rest.subject)
                if texts and rest.at - SLACK <= now < rest.until <= rest.at + LONGEST:
                    yield rest
            except TypeError:
                continue


def digest_of(key: str) -> str:
    """Return a digest of a key that reveals nothing and is the same in every process."""
    return hashlib.sha256(b"fsm-agent key rest\0" + key.encode("utf-8", "replace")).hexdigest()[:24]
