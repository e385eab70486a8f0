"""``fsm-agent doctor``: what a turn needs, checked one by one, each with what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from fsm_agent.cli.figures import count
from fsm_agent.cli.models import known_of, learned_in, lines_of, name_of
from fsm_agent.cli.screen import clean, console_of
from fsm_agent.composition.turn_table import TURN
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.fsm.verify import examine
from fsm_agent.providers.config_file import Config, config_of
from fsm_agent.providers.kept_keys import is_kept, unkept
from fsm_agent.providers.prices import price_of
from fsm_agent.providers.probe import local_models
from fsm_agent.providers.profiles import LOCAL_SERVERS
from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.sessions.store.health import health
from fsm_agent.settings.errors import about_unknown
from fsm_agent.settings.model import Settings, unknown_variables
from fsm_agent.support.clock import SystemClock
from fsm_agent.support.home import home_of, workdir_of
from fsm_agent.support.redaction import mask
from fsm_agent.support.threads import LOOP, in_a_loop
from fsm_agent.support.version import __version__
from fsm_agent.toolsets.mcp.log import LOGS
from fsm_agent.toolsets.mcp.servers import McpServers
from fsm_agent.toolsets.sandbox import sandbox_of

PACKAGES = (
    "transitions",
    "pydantic",
    "pydantic-settings",
    "openai",
    "anthropic",
    "tenacity",
    "platformdirs",
    "typer",
    "rich",
    "prompt-toolkit",
    "tomlkit",
    "genai-prices",
    "google-re2",
)
OLDEST = (3, 11)
SANDBOXES = ("bubblewrap", "docker", "podman")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found, and what to do when it is a problem."""

    what: str
    found: str
    todo: str = ""

    @property
    def ok(self) -> bool:
        """Say whether there is nothing to do."""
        return not self.todo


def doctor(home: str | None) -> int:
    """Print all findings; 1 when one of them is a problem. Raises ``ConfigError`` in a folder that was
    removed."""
    workdir_of(None)
    console = console_of(sys.stdout)
    problems = 0
    for finding in _findings(home):
        problems += not finding.ok
        mark, colour = ("ok     ", "green") if finding.ok else ("problem", "red")
        todo = f"; {finding.todo}" if finding.todo else ""
        console.print(Text.assemble((mark, colour), f"  {finding.what:<14} {clean(finding.found + todo)}"))
    console.print(Text("all is well" if not problems else f"problems: {problems}", "bold"))
    return 1 if problems else 0


def _findings(home: str | None) -> Iterator[Finding]:
    yield _python()
    yield _packages()
    yield _table()
    yield _home(home)
    config, problem = _config(home)
    yield _sessions(home, config)
    yield problem
    yield _settings()
    yield _keys(config)
    yield _servers()
    yield _model(config)
    yield _limits(config)
    yield _learned(home, config)
    yield _mcp_servers(home, config)
    yield _sandbox(home, config)
    yield _checkpoints(home, config)
    yield _dispatcher(config)
    yield _terminal()


def _python() -> Finding:
    old = sys.version_info < OLDEST
    found = f"fsm-agent {__version__} on Python {platform.python_version()}, {platform.system()}"
    return Finding("python", found, "install Python 3.11 or newer" if old else "")


def _packages() -> Finding:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    todo = f"install what is missing: pip install {' '.join(missing)}" if missing else ""
    return Finding("packages", ", ".join(found), todo)


def _table() -> Finding:
    began = time.perf_counter()
    proof = examine(TURN)
    spent = (time.perf_counter() - began) * 1000
    if proof.faults:
        return Finding("table", str(proof.faults[0]), "see fsm-agent verify; do not run turns")
    return Finding(
        "table", f"{len(TURN.rows)} rows proved in {spent:.0f} ms: one row is open, every turn ends"
    )


def _config(given: str | None) -> tuple[Config, Finding]:
    try:
        home = home_of(given, os.environ)
    except ConfigError:
        return Config(Path()), Finding("config file", "not looked at, because there is no home")
    try:
        config = config_of(home)
    except ConfigError as error:
        return Config(Path()), Finding("config file", mask(str(error)), "correct it")
    found = f"{config.path}, {'good' if config.path.exists() else 'not there; none is needed'}"
    return config, Finding("config file", found)


def _settings() -> Finding:
    try:
        given = Settings().model_fields_set
    except ConfigError as error:
        return Finding("settings", str(error), "correct the FSM_AGENT_… variable")
    if unknown := unknown_variables():
        return Finding("settings", about_unknown(unknown[0]), "correct the FSM_AGENT_… variable")
    return Finding("settings", f"from the environment: {', '.join(sorted(given)) or 'none'}")


def _keys(config: Config) -> Finding:
    """Where each key is from; no keyring is asked for more than that the key is there."""
    given = {
        name: os.environ[name]
        for name in (profile.key_env for profile in config.profiles.values())
        if name and os.environ.get(name)
    } | {f"[providers.{name}]": profile.key for name, profile in config.profiles.items() if profile.key}
    found = []
    for name, text in sorted(given.items()):
        if text.strip() != text:
            return Finding("keys", f"{name} has blanks around it", "set it again without them")
        try:
            unkept(text)
        except ConfigError as error:
            return Finding("keys", f"{name}: {error}", "put the key into the keyring, or give it otherwise")
        found.append(f"{name}=*** ({text})" if is_kept(text) else f"{name}=*** (the environment)")
    return Finding("keys", ", ".join(found) or "none set; fine for local servers and the offline demo")


def _servers() -> Finding:
    found = []
    for profile in LOCAL_SERVERS:
        address = os.environ.get(profile.base_url_env or "") or profile.base_url or ""
        if models := local_models(address):
            found.append(f"{profile.name} at {mask(address)} with {len(models)} models")
    looked = ", ".join(profile.name for profile in LOCAL_SERVERS)
    return Finding("local servers", ", ".join(found) or f"none found ({looked}); none is needed")


def _model(config: Config) -> Finding:
    try:
        allowed = Settings.of(None, config.settings).credential.plain_http
    except ConfigError:  # told above
        allowed = ()
    try:
        choice = config.chooser(plain_http=allowed)
    except ConfigError as error:
        return Finding(
            "model", mask(str(error)), "correct FSM_AGENT_MODEL, the config file, or the provider's variables"
        )
    return Finding("model", f"{name_of(choice)}, because {choice.why}; known of it: {known_of(choice)}")


def _limits(config: Config) -> Finding:
    try:
        settings = Settings.of(None, config.settings)
        choice = config.chooser(plain_http=settings.credential.plain_http)
    except ConfigError:
        return Finding("limits", "not looked at, because the settings or the model cannot be used")
    given = {
        f"limits.{scope}.{unit}": value
        for scope, limit in settings.limits.each.items()
        for unit, value in limit.model_dump(exclude_none=True).items()
    }
    priced = price_of(choice.model, choice.profile.name, settings.prices) is not None
    todo = (
        ""
        if priced or not any(name.endswith("usd") for name in given)
        else f"set prices for {name_of(choice)}"
    )
    found = ", ".join(f"{name} = {value:,}" for name, value in given.items())
    return Finding("limits", found or "none in money, tokens or time", todo)


def _learned(given: str | None, config: Config) -> Finding:
    try:
        lines = lines_of(learned_in(home_of(given, os.environ), config))
    except ConfigError:
        return Finding("learned", "not looked at, because the settings or the home cannot be used")
    todo = "; fsm-agent models forget takes it back" if lines else ""
    return Finding("learned", ("; ".join(lines) or "nothing yet of any model") + todo)


def _home(given: str | None) -> Finding:
    try:
        path = home_of(given, os.environ)
        if path.exists():
            home_of(path, os.environ)
    except ConfigError as error:
        return Finding("home", str(error), "give a writable --home, or set FSM_AGENT_HOME")
    parent = next(place for place in (path, *path.parents, Path("/")) if place.exists())
    if not os.access(parent, os.W_OK):
        return Finding("home", f"{path} cannot be made", "give a writable --home, or set FSM_AGENT_HOME")
    return Finding("home", f"{path}, writable" if path.exists() else f"{path}, made when it is first needed")


def _sessions(given: str | None, config: Config) -> Finding:
    try:
        url = Settings.of(None, config.settings).store.database
    except ConfigError:
        return Finding("sessions", "not looked at, because the settings cannot be used")
    try:
        found = health(home_of(given, os.environ), url)
    except ConfigError:
        return Finding("sessions", "not looked at, because there is no home")
    except StoreError as error:
        where = "in this home" if url is None else "with this database"
        return Finding("sessions", str(error), f"until then no turn can be run {where}")
    if found is None:
        return Finding("sessions", "none yet")
    left = f", {count(found.unfinished, 'turn')} unfinished" if found.unfinished else ""
    counted = f"{count(found.sessions, 'session')}{left}, {found.size / 1e6:.1f} MB"
    if url is None:
        return Finding("sessions", f"{counted}, every page is whole")
    if found.wrong or not found.version:
        return Finding("sessions", f"{found.place}: {found.server}", found.wrong)
    return Finding("sessions", f"{found.place}: {found.server}, {counted}, every text is whole")


def _mcp_servers(given: str | None, config: Config) -> Finding:
    """They are started for it, and ended again."""
    try:
        home = home_of(given, os.environ)
    except ConfigError:
        return Finding("mcp servers", "not looked at, because there is no home")
    try:
        servers = McpServers.of(
            None,
            home=home,
            workdir=Path.cwd(),
            clock=SystemClock(),
            settings=Settings.of(None, config.settings),
        )
    except ConfigError as error:
        return Finding(
            "mcp servers", mask(str(error)), "correct config.toml in the home, or the FSM_AGENT_… variable"
        )
    if servers is None:
        return Finding("mcp servers", "none configured; none is needed")
    try:
        seen = LOOP.run(servers.look())
    finally:
        LOOP.run(servers.aclose())
    todo = (
        ""
        if all(there for there, _ in seen.values())
        else f"see config.toml, and what they said in {home / LOGS}"
    )
    return Finding("mcp servers", ", ".join(f"{name}: {words}" for name, (_, words) in seen.items()), todo)


def _sandbox(given: str | None, config: Config) -> Finding:
    """Every backend is tried, so that a person knows what there is to choose from."""
    try:
        rules, home = Settings.of(None, config.settings).sandbox, home_of(given, os.environ)
    except ConfigError:
        return Finding("sandbox", "not looked at, because the settings or the home cannot be used")
    found, todo = [], ""
    for backend in SANDBOXES:
        place = sandbox_of(rules.model_copy(update={"backend": backend}), Path.cwd(), home)
        try:
            trouble = place.trouble(Path.cwd())
        except ConfigError as error:
            trouble = str(error), "work in another folder, or correct the setting"
        found.append(f"{backend} does not work ({trouble[0]})" if trouble else f"{backend} works")
        todo = trouble[1] if trouble and backend == rules.backend else todo
    return Finding("sandbox", mask(f"commands run in: {rules.backend}; {', '.join(found)}"), todo)


def _checkpoints(given: str | None, config: Config) -> Finding:
    try:
        made = Checkpoints(
            home_of(given, os.environ), Path.cwd(), Settings.of(None, config.settings).checkpoints
        )
        found = f"none here: {made.trouble}" if made.trouble else f"{len(made.all())} of {made.workdir}"
    except ConfigError:
        return Finding("checkpoints", "not looked at, because the settings or the home cannot be used")
    except StoreError as error:
        return Finding(
            "checkpoints", str(error), f"until then files are not kept; {made.folder} can be deleted"
        )
    return Finding("checkpoints", found)


def _dispatcher(config: Config) -> Finding:
    """Who hands queued turns to workers, and whether a worker with this table asks for some."""
    from fsm_agent.dispatch.submit import dispatcher_of

    try:
        settings = Settings.of(None, config.settings).dispatch
    except ConfigError:
        return Finding("dispatcher", "not looked at, because the settings cannot be used")
    try:
        return Finding("dispatcher", in_a_loop(dispatcher_of(settings).about()))
    except ConfigError as error:
        return Finding("dispatcher", str(error), "correct dispatch.temporal, or start the server")


def _terminal() -> Finding:
    console = console_of(sys.stdout)
    encoding = (getattr(sys.stdout, "encoding", None) or "unknown").lower()
    size = (
        f"{console.width} columns, {console.color_system or 'no'} colours"
        if console.is_terminal
        else "no terminal: plain lines"
    )
    todo = "" if encoding.replace("-", "") in ("utf8", "unknown") else "set PYTHONIOENCODING=utf-8"
    return Finding("terminal", f"{size}, {encoding}", todo)
