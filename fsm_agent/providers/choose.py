"""Choose the provider, model, address, and keys. Reads only the given environment; imports no SDK."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote, urlsplit

from fsm_agent.conversation.effects import ApiMode, OutputMode, Runtime
from fsm_agent.conversation.parts import Kind
from fsm_agent.conversation.wire.options import reasons
from fsm_agent.errors import ConfigError, near
from fsm_agent.providers.catalog import ModelFacts, facts_of, silence_of
from fsm_agent.providers.credentials import unkept
from fsm_agent.providers.profiles import (
    BY_KEY,
    LOCAL_SERVERS,
    PROFILES,
    ROWS,
    Profile,
    is_loopback,
    is_nearby,
)
from fsm_agent.runtime.ports import Clock, ModelPort
from fsm_agent.settings import Settings
from fsm_agent.support.redaction import mask

if TYPE_CHECKING:
    from fsm_agent.providers.sdk_port import SdkPort


# Where a key may be sent: only to the origin that it is for, and over TLS.
#
# A key in the environment is for its provider's own address, and for the address in the provider's variable
# (``OPENAI_BASE_URL``). A key passed together with an address is for that address. Nothing goes to another
# machine without TLS unless its host is in the setting ``credential.plain_http``; the exception is a server
# in a private network that receives no key.


KEY_SHAPES = (("sk-ant-", "anthropic"), ("sk-or-", "openrouter"), ("gsk_", "groq"), ("AIza", "gemini"),
              ("xai-", "xai"))  # fmt: skip
"""Key prefixes that only one provider issues."""
_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """Return scheme, host, and port, as a browser compares them: ``https://api.openai.com``."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return f"{parts.scheme}://{host}" + ("" if port in (None, _PORTS.get(parts.scheme)) else f":{port}")


def vendors_at(url: str | None) -> frozenset[str]:
    """Return the known providers whose own host this is, whatever the path."""
    if not url:
        return frozenset()
    host = urlsplit(origin(url)).hostname
    return frozenset(
        row.name for row in ROWS if row.needs_key and row.base_url and urlsplit(row.base_url).hostname == host
    )


def is_for(profile: Profile, url: str | None, named: str | None) -> bool:
    """Return whether the key in the environment may be sent to ``url``. ``named``: the address in the
    provider's variable. The key of a provider without an address of its own is for the given one."""
    if url is None or profile.base_url is None:
        return not vendors_at(url)
    own = {origin(profile.base_url)}
    if named and vendors_at(named) <= vendors_at(profile.base_url):
        own.add(origin(named))
    return origin(url) in own


# A foreign key is refused before it is sent, but only for a provider's own address: behind a proxy, any key
# may be right.


def check_keys(profile: Profile, url: str | None, keys: Iterable[str]) -> None:
    """Refuse another provider's key for a provider's own address: it can only be a mistake. Raises
    ``ConfigError``."""
    expected = vendors_at(url) or (frozenset((profile.name,)) if url == profile.base_url else frozenset())
    for key in keys if expected else ():
        owner = next((name for shape, name in KEY_SHAPES if key.startswith(shape)), "")
        if owner and owner not in expected:
            problem = f"the key for provider {profile.name!r} looks like one of {owner}"
            raise ConfigError(problem, mask(key), f"a key of {profile.name}, or model '{owner}:<model>'")


def check_tls(url: str | None, *, key: bool, plain_http: Collection[str]) -> None:
    """Refuse an address without TLS unless it is allowed. ``key``: whether a key is sent. Raises
    ``ConfigError``."""
    if url is None or urlsplit(url).scheme != "http" or is_loopback(url) or (is_nearby(url) and not key):
        return
    host = urlsplit(url).hostname or ""
    if host not in {one.lower() for one in plain_http}:
        carried = "the key and the conversation" if key else "the conversation"
        allowed = f'an https address, or the setting credential.plain_http = ["{host}"]'
        raise ConfigError(f"{carried} would go to {origin(url)} without TLS", None, allowed)


MODES: tuple[ApiMode, ...] = get_args(ApiMode)
MOST_WINDOW = 1_000_000_000_000
GIVEN = "what was given"
MODEL_ENV = "FSM_AGENT_MODEL"
_NAMED, _PLAIN = re.compile(r"{([A-Z_|]+)}"), re.compile(r"[\w.:-]+")
"""A variable in an address, and the values it may have."""
OFFLINE = "no usable key is set and no local server answers, so the offline demo replies"
Probe = Callable[[str], Sequence[str]]
"""Lists the models of a server by its base URL; empty without a server."""

GUESSES: set[str] = set()
"""Notices about unknown models that this process has shown."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A usable provider. ``keys`` may be empty: the server needs none, or the caller has a key source.
    ``facts``: what is known of the model. ``why`` is one sentence."""

    profile: Profile
    model: str
    base_url: str | None
    keys: tuple[str, ...]
    facts: ModelFacts
    why: str
    api_mode: ApiMode = "chat_completions"

    @property
    def route(self) -> str:
        """Path of a request, if it differs from the wire's default; else empty."""
        if (self.base_url or "").rstrip("/").endswith("/v1"):
            return ""
        return dict(self.profile.routes).get(self.api_mode, "").format(model=quote(self.model, safe=""))

    @property
    def window(self) -> int | None:
        """Maximum prompt in tokens, ``None`` if unknown."""
        return self.facts.window

    @property
    def guess(self) -> str:
        """One line with the assumptions about an unknown model; empty for a known one."""
        if self.facts.source or self.profile.in_process:
            return ""
        window = f"is taken for {self.window:,} tokens until" if self.window else "is not known before"
        name = f"{self.profile.name}:{self.model}"
        return (
            f"nothing is known of {name}: its window {window} the provider names it; context_window= sets it"
        )

    @property
    def local(self) -> bool:
        """Whether this is a local server, which gets patience instead of a fast watchdog."""
        return self.profile.local and is_nearby(self.base_url)

    def _output_mode(self) -> OutputMode:
        """Return how the model gives a typed answer: by a schema if the catalog says that it supports one, or
        if its server constrains every model to a schema; else by a tool, or by the prompt if it has no
        tools."""
        if self.facts.schema or (self.facts.schema is None and self.profile.schemas):
            return "native"
        return "prompt" if self.facts.tools is False else "tool"

    def runtime(self, primary: bool = True) -> Runtime:
        """Return the turn's view of this provider."""
        profile, name = self.profile, self.model.lower()
        claude = self.api_mode == "anthropic_messages" and (profile.name == "anthropic" or "claude" in name)
        return Runtime(
            provider=self.profile.name,
            model=self.model,
            base_url=self.base_url,
            api_mode=self.api_mode,
            window=self.window,
            most_output=self.facts.output,
            vision=self.facts.can_read("image"),
            primary=primary,
            local=self.local,
            aggregator=self.profile.aggregator,
            manners=profile.manners,
            output_key=self.profile.output_key,
            audio=self.facts.can_read("audio"),
            files=self.facts.can_read("file"),
            stale_floor=silence_of(self.model),
            cache_marks=claude
            or (self.api_mode == "chat_completions" and any(part in name for part in profile.marked_models)),
            effort_key=profile.effort_key
            if profile.effort_key != "reasoning_effort" or reasons(name)
            else "",
            structured_output=self._output_mode(),
            prompt_role="developer" if profile.developer_role and reasons(name) else "system",
            error_rows=self.profile.error_rows,
        )


def choose(
    model: str | None = None,
    base_url: str | None = None,
    api_key: Any = None,
    api_mode: str | None = None,
    context_window: int | None = None,
    env: Mapping[str, str] | None = None,
    probe: Probe | None = None,
    profiles: Mapping[str, Profile] = PROFILES,
    configured: str | None = None,
    plain_http: Sequence[str] = (),
) -> Choice:
    """Choose the provider and model: the given model, ``FSM_AGENT_MODEL``, the ``configured`` one from a
    file, a key in the environment, a local server, or else the offline demo.

    ``api_key``: a string, a sequence of strings, or an object with ``get()`` and ``refresh()``, which stays
    with the caller. ``probe`` finds local servers; ``None`` skips the search. ``profiles`` may include the
    user's own rows. ``plain_http``: hosts that may be used without TLS. Raises ``ConfigError`` with one line
    for anything unusable."""
    env = {} if env is None else env
    _check_url(base_url, "base_url")
    _check_mode(api_mode)
    _check_window(context_window)
    keys = _given_keys(api_key)
    profile, name, why = _pick(model, base_url, env, probe, profiles, configured)
    profile, unset = _fill_from_environment(profile, env)
    url = base_url or _from_env(profile.base_url_env, env) or (None if unset else profile.base_url)
    if url is None and not profile.in_process:
        allowed = f"base_url or {profile.base_url_env}{', or ' if unset else ''}{' and '.join(unset)}"
        raise ConfigError(f"provider {profile.name!r} needs an address", name, allowed)
    if url is not None and not base_url:
        _check_url(url, profile.base_url_env or "base_url")
    usable = _keys(profile, url, api_key, keys, env)
    check_keys(profile, url, usable)
    check_tls(url, key=bool(usable) or api_key is not None, plain_http=plain_http)
    return Choice(
        profile=profile,
        model=name,
        base_url=None if profile.in_process else url,
        keys=usable,
        facts=_facts(profile, name, context_window),
        why=why,
        api_mode=_mode(profile, url, api_mode),
    )


def _fill_from_environment(profile: Profile, env: Mapping[str, str]) -> tuple[Profile, list[str]]:
    """Return the profile with address and API version from the environment, and the unset variables of its
    address."""
    if version := _from_env(profile.api_version_env, env):
        profile = replace(profile, api_version=version)
    address = profile.base_url or ""
    found = {
        names: next(filter(None, (_from_env(one, env) for one in names.split("|"))), "")
        for names in _NAMED.findall(address)
    }
    if unset := [names.partition("|")[0] for names, value in found.items() if not _PLAIN.fullmatch(value)]:
        return profile, unset
    return replace(profile, base_url=_NAMED.sub(lambda name: found[name[1]], address) or None), []


def _facts(profile: Profile, model: str, given: int | None) -> ModelFacts:
    """Return the catalog's facts with the configured window. The catalog does not cover custom servers, where
    a model's abilities depend on how it was started."""
    window = profile.window(model) if given is None else given
    known = facts_of(profile.catalog, model) if profile.catalog else ModelFacts()
    images: frozenset[Kind] = frozenset(("image",))
    reads = known.reads
    if profile.files == "all":
        reads = (images if reads is None else reads).union(("file",))
    elif reads is not None and profile.files == "none":
        reads = reads.difference(("file",))
    known = replace(known, reads=reads if profile.reads is None else profile.reads)
    return known if window is None else replace(known, window=window, source=known.source or GIVEN)


def _pick(
    model: str | None,
    base_url: str | None,
    env: Mapping[str, str],
    probe: Probe | None,
    profiles: Mapping[str, Profile],
    configured: str | None,
) -> tuple[Profile, str, str]:
    """Return the provider, the model's name, and the reason."""
    if model is not None:
        return (*_split_name(model, base_url, profiles, "model"), "the model was given")
    if named := _from_env(MODEL_ENV, env):
        return (*_split_name(named, base_url, profiles, MODEL_ENV), f"{MODEL_ENV} names the model")
    if base_url is not None:
        return (PROFILES["local"], *_first_listed_model(base_url, probe))
    if configured:
        return (
            *_split_name(configured, None, profiles, "model in the config file"),
            "the config file names the model",
        )
    return _by_key(env) or _by_server(env, probe) or (PROFILES["offline"], "demo", OFFLINE)


def _by_key(env: Mapping[str, str]) -> tuple[Profile, str, str] | None:
    for profile in BY_KEY:
        if profile.default_model and _from_env(profile.key_env, env):
            return (
                profile,
                profile.default_model,
                f"{profile.key_env} is set, so {profile.name}'s default model is used",
            )
    return None


def _by_server(env: Mapping[str, str], probe: Probe | None) -> tuple[Profile, str, str] | None:
    for profile in LOCAL_SERVERS if probe is not None else ():
        address = _from_env(profile.base_url_env, env) or profile.base_url or ""
        if probe is not None and (found := probe(address)):
            return (
                profile,
                found[0],
                f"no usable key is set and {profile.name} at {address} lists this model first",
            )
    return None


def _split_name(
    model: str, base_url: str | None, profiles: Mapping[str, Profile], setting: str
) -> tuple[Profile, str]:
    """Split ``<provider>:<model>``. With a base URL, a name without a known provider is a local model."""
    if not isinstance(model, str) or not model.strip():
        raise ConfigError(f"{setting} is empty or no text", model, "'<provider>:<model>'")
    provider, colon, name = (part.strip() for part in model.partition(":"))
    profile = profiles.get(provider.lower())
    if profile is None and base_url is not None:
        return PROFILES["local"], model.strip()
    known = ", ".join(profiles)
    if not colon:
        raise ConfigError(
            f"{setting} names no provider", model, f"'<provider>:<model>' with a provider of {known}"
        )
    if profile is None:
        raise ConfigError(
            f"{setting} names an unknown provider {provider!r}", model, near(provider, profiles)
        )
    if not name:
        raise ConfigError(f"{setting} names no model after the colon", model, f"'{provider}:<model>'")
    return profile, name


def _first_listed_model(base_url: str, probe: Probe | None) -> tuple[str, str]:
    """Return the first model that the server at a given address lists, and the reason."""
    found = probe(base_url) if probe is not None and is_loopback(base_url) else ()
    if not found:
        raise ConfigError(
            "base_url was given without a model", base_url, f"model or {MODEL_ENV}: '<provider>:<model>'"
        )
    return found[0], f"the server at {base_url} lists this model first"


def _given_keys(api_key: Any) -> tuple[str, ...]:
    if api_key is None or hasattr(api_key, "get"):
        return ()
    keys = (
        [api_key] if isinstance(api_key, str) else list(api_key) if isinstance(api_key, Sequence) else [None]
    )
    if not keys or not all(isinstance(key, str) and key.strip() for key in keys):
        empty = not keys or any(isinstance(key, str) and not key.strip() for key in keys)
        problem = "api_key is empty" if empty else "api_key cannot be used"
        allowed = "a string, a list of strings, or an object with get() and refresh()"
        raise ConfigError(problem, type(api_key).__name__, allowed)
    return tuple(unkept(str(key)) for key in keys)


def _keys(
    profile: Profile, url: str | None, api_key: Any, given: tuple[str, ...], env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the given keys, else the key of the profile or the environment if it is for this address. Raises
    ``ConfigError`` without a key that the provider needs, except on this machine."""
    if api_key is not None:
        return given
    named = _from_env(profile.base_url_env, env)
    if (key := profile.key or _from_env(profile.key_env, env)) and is_for(profile, url, named):
        return (unkept(key),)
    if profile.needs_key and not is_loopback(url):
        if key and url is not None:
            allowed = f"api_key, if there is one for {origin(url)}"
            allowed += f", or {profile.base_url_env} with that address" if not vendors_at(url) else ""
            raise ConfigError(
                f"the key in {profile.key or profile.key_env} is not for {origin(url)}", None, allowed
            )
        raise ConfigError(
            f"no key for provider {profile.name!r}", None, f"set {profile.key_env}, or pass api_key"
        )
    return ()


def _mode(profile: Profile, url: str | None, api_mode: str | None) -> ApiMode:
    """Return the wire: the given one, else the provider's own, else by the address."""
    parts = urlsplit(url or "")
    by_url = (
        parts.path.rstrip("/").removesuffix("/v1").endswith("/anthropic")
        or (parts.hostname or "") == "api.anthropic.com"
    )
    given = next((mode for mode in MODES if mode == api_mode), None)
    return given or (
        "anthropic_messages" if by_url and profile.api_mode == "chat_completions" else profile.api_mode
    )


def _check_mode(api_mode: str | None) -> None:
    if api_mode is not None and api_mode not in MODES:
        raise ConfigError("unknown api_mode", api_mode, ", ".join(MODES))


def _check_window(window: Any) -> None:
    if window is None:
        return
    if not isinstance(window, int) or isinstance(window, bool) or not 0 < window <= MOST_WINDOW:
        allowed = f"1 to {MOST_WINDOW:,} tokens, for example 128000"
        raise ConfigError("context_window is not a positive whole number", window, allowed)


def _check_url(url: Any, setting: str) -> None:
    """Raise ``ConfigError`` unless the address has the scheme http or https, a host, and no invalid port."""
    if url is None:
        return
    try:
        parts = urlsplit(url) if isinstance(url, str) and not any(c.isspace() for c in url) else None
        good = (
            parts is not None
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
        )
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"{setting} is not a web address", url, "http://host[:port]/path or https://host/path"
        )


def _from_env(name: str | None, env: Mapping[str, str]) -> str | None:
    return (env.get(name) or "").strip() or None if name else None


# From a choice to a model port. Only this section knows which class implements which wire.


LINGER = 5.0
"""Seconds that a stream may stay open after its finish reason. The reply is complete by then. A shorter stale
limit must not expire first, or the watchdog would treat the reply as cut and have it continued."""


def connect(
    choice: Choice, settings: Settings, clock: Clock, headers: Mapping[str, str] | None = None
) -> ModelPort:
    """Return a port for the choice. It opens no connection and loads no SDK before its first call.
    ``headers`` are sent with each request."""
    if choice.profile.name == "offline":
        from fsm_agent.providers.offline import OfflineDemo

        return OfflineDemo()
    if choice.profile.name == "scripted":
        from fsm_agent.providers.scripted import ScriptedModel, script_from

        return ScriptedModel(script_from(choice.model), clock)
    timeout, stale, profile = settings.timeout, settings.stale, choice.profile
    versioned = bool(choice.route and profile.api_version)
    options: dict[str, Any] = {
        "connect": timeout.connect,
        "read": max(stale.local, timeout.read, *stale.stream.each, *stale.whole.each),
        "total": timeout.total,
        "linger": min(LINGER, min(stale.stream.each) / 2),
        "now": clock.now,
        "headers": headers or {},
        "auth": profile.auth,
        "route": choice.route,
        "query": {"api-version": profile.api_version} if versioned else {},
    }
    kind: type[SdkPort]
    if profile.client == "bedrock":
        from fsm_agent.providers.anthropic_messages import BedrockMessages, check_installed

        check_installed()
        kind = BedrockMessages
    elif choice.api_mode == "anthropic_messages":
        from fsm_agent.providers.anthropic_messages import AnthropicMessages

        kind = AnthropicMessages
    else:
        from fsm_agent.providers.openai_port import OpenAIChat, OpenAIResponses

        kind = OpenAIResponses if choice.api_mode == "codex_responses" else OpenAIChat
    return kind(choice.base_url or "", choice.keys[0] if choice.keys else "", **options)
