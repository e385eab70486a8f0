"""``fsm-agent doctor``: checks the requirements of a turn one by one, each with a fix."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from fsm_agent.cli.models import learned_facts, lines_of, model_facts, name_of
from fsm_agent.cli.options import Home
from fsm_agent.cli.screen import Hanging, clean, console_of, count
from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.extension import Check, Extension, extensions_of, kept_values
from fsm_agent.fsm.proof import examine
from fsm_agent.providers.catalog import price_of
from fsm_agent.providers.config_file import Config, config_of
from fsm_agent.providers.credentials import is_kept, unkept
from fsm_agent.providers.profiles import LOCAL_SERVERS, local_models
from fsm_agent.runtime.clock import SystemClock
from fsm_agent.serve.doors import built_in_doors
from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.sessions.store.schema import health
from fsm_agent.settings import Settings, unknown_variables
from fsm_agent.settings.errors import about_unknown
from fsm_agent.support import __version__
from fsm_agent.support.files import home_of, workdir_of
from fsm_agent.support.installation import installed_extensions
from fsm_agent.support.redaction import mask
from fsm_agent.support.threads import LOOP, in_a_loop
from fsm_agent.toolsets.mcp import McpServers
from fsm_agent.toolsets.mcp.process import LOGS
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
_HANG = 24
"""Columns before a finding."""
SANDBOXES = ("bubblewrap", "docker", "podman")


def doctor(home: Home = None) -> int:
    """Check that this machine has what a turn needs. Exit code 1 when something is missing."""
    workdir_of(None)
    console = console_of(sys.stdout)
    problems = 0
    for finding in _findings(home):
        problems += not finding.ok
        mark, color = ("ok     ", "green") if finding.ok else ("problem", "red")
        todo = f"; {finding.todo}" if finding.todo else ""
        line = Text.assemble((mark, color), f"  {finding.what:<14} {clean(finding.found + todo)}")
        console.print(Hanging(line, _HANG))
    console.print(Text("all is well" if not problems else f"problems: {problems}", "bold"))
    return 1 if problems else 0


def _findings(home: str | None) -> Iterator[Check]:
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
    yield _check_learned(home, config)
    yield _mcp_servers(home, config)
    yield _sandbox(home, config)
    yield _checkpoints(home, config)
    yield _dispatcher(config)
    yield from _doors()
    yield from _extensions(home, config)
    yield _terminal()


def _extensions(home: str | None, config: Config) -> Iterator[Check]:
    """Yield the installed extensions, and the checks of those that the settings use."""
    try:
        used, there = Settings.of(None, config.settings).extensions, sorted(installed_extensions())
    except ConfigError:
        return  # another line reports the error in the settings
    if not (used or there):
        return
    yield Check("extensions", f"installed: {', '.join(there) or 'none'}; used: {', '.join(used) or 'none'}")
    kept = kept_values(Extension, home)
    for name, given in used.items():
        try:
            for extension in extensions_of((), {name: given}, kept):
                for check in extension.checks():
                    yield replace(check, what=f"extension {name}: {check.what}")
        except Exception as error:  # foreign code may raise anything
            why = mask(f"{type(error).__name__}: {error}")
            yield Check(f"extension {name}", why, "ask its maker, or take it out of [settings.extensions]")


def _doors() -> Iterator[Check]:
    """Yield the doors that ``fsm-agent serve`` opens by default; those of other packages are extensions."""
    doors = built_in_doors()
    closed = [f"{name} needs {install}" for name, install in doors.closed.items()]
    yield Check("doors", "; ".join([", ".join(one.name for one in doors.open) or "none", *closed]))
    for door in doors.open:
        for check in door.checks():
            yield replace(check, what=f"door {door.name}: {check.what}")


def _python() -> Check:
    old = sys.version_info < OLDEST
    found = f"fsm-agent {__version__} on Python {platform.python_version()}, {platform.system()}"
    return Check("python", found, "install Python 3.11 or newer" if old else "")


def _packages() -> Check:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    todo = f"install what is missing: pip install {' '.join(missing)}" if missing else ""
    return Check("packages", ", ".join(found), todo)


def _table() -> Check:
    proof = examine(TURN)
    if proof.faults:
        return Check("table", str(proof.faults[0]), "see fsm-agent verify; do not run turns")
    return Check("table", f"{len(TURN.rows)} rows, proved: exactly one is open, every turn ends")


def _config(given: str | None) -> tuple[Config, Check]:
    try:
        home = home_of(given, os.environ)
    except ConfigError:
        return Config(Path()), Check("config file", "not looked at, because there is no home")
    try:
        config = config_of(home)
    except ConfigError as error:
        return Config(Path()), Check("config file", mask(str(error)), "correct it")
    found = f"{config.path}, {'good' if config.path.exists() else 'not there; none is needed'}"
    return config, Check("config file", found)


def _settings() -> Check:
    try:
        given = Settings().model_fields_set
    except ConfigError as error:
        return Check("settings", str(error), "correct the FSM_AGENT_… variable")
    if unknown := unknown_variables():
        return Check("settings", about_unknown(unknown[0]), "correct the FSM_AGENT_… variable")
    return Check("settings", f"from the environment: {', '.join(sorted(given)) or 'none'}")


def _keys(config: Config) -> Check:
    """Report the source of each key; a keyring is asked only whether it has the key."""
    given = {
        name: os.environ[name]
        for name in (profile.key_env for profile in config.profiles.values())
        if name and os.environ.get(name)
    } | {f"[providers.{name}]": profile.key for name, profile in config.profiles.items() if profile.key}
    found = []
    for name, text in sorted(given.items()):
        if text.strip() != text:
            return Check("keys", f"{name} has blanks around it", "set it again without them")
        try:
            unkept(text)
        except ConfigError as error:
            return Check("keys", f"{name}: {error}", "put the key into the keyring, or give it otherwise")
        found.append(f"{name}=*** ({text})" if is_kept(text) else f"{name}=*** (the environment)")
    return Check("keys", ", ".join(found) or "none set; fine for local servers and the offline demo")


def _servers() -> Check:
    found = []
    for profile in LOCAL_SERVERS:
        address = os.environ.get(profile.base_url_env or "") or profile.base_url or ""
        if models := local_models(address):
            found.append(f"{profile.name} at {mask(address)} with {len(models)} models")
    looked = ", ".join(profile.name for profile in LOCAL_SERVERS)
    return Check("local servers", ", ".join(found) or f"none found ({looked}); none is needed")


def _model(config: Config) -> Check:
    try:
        allowed = Settings.of(None, config.settings).credential.plain_http
    except ConfigError:  # reported above
        allowed = ()
    try:
        choice = config.chooser(plain_http=allowed)
    except ConfigError as error:
        return Check(
            "model", mask(str(error)), "correct FSM_AGENT_MODEL, the config file, or the provider's variables"
        )
    return Check("model", f"{name_of(choice)}, because {choice.why}; known of it: {model_facts(choice)}")


def _limits(config: Config) -> Check:
    try:
        settings = Settings.of(None, config.settings)
        choice = config.chooser(plain_http=settings.credential.plain_http)
    except ConfigError:
        return Check("limits", "not looked at, because the settings or the model cannot be used")
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
    return Check("limits", found or "none in money, tokens or time", todo)


def _check_learned(given: str | None, config: Config) -> Check:
    try:
        lines = lines_of(learned_facts(home_of(given, os.environ), config))
    except ConfigError:
        return Check("learned", "not looked at, because the settings or the home cannot be used")
    todo = "; fsm-agent models forget takes it back" if lines else ""
    return Check("learned", ("; ".join(lines) or "nothing yet of any model") + todo)


def _home(given: str | None) -> Check:
    try:
        path = home_of(given, os.environ)
        if path.exists():
            home_of(path, os.environ)
    except ConfigError as error:
        return Check("home", str(error), "give a writable --home, or set FSM_AGENT_HOME")
    parent = next(place for place in (path, *path.parents, Path("/")) if place.exists())
    if not os.access(parent, os.W_OK):
        return Check("home", f"{path} cannot be made", "give a writable --home, or set FSM_AGENT_HOME")
    return Check("home", f"{path}, writable" if path.exists() else f"{path}, made when it is first needed")


def _sessions(given: str | None, config: Config) -> Check:
    try:
        url = Settings.of(None, config.settings).store.database
    except ConfigError:
        return Check("sessions", "not looked at, because the settings cannot be used")
    try:
        found = health(home_of(given, os.environ), url)
    except ConfigError:
        return Check("sessions", "not looked at, because there is no home")
    except StoreError as error:
        where = "in this home" if url is None else "with this database"
        return Check("sessions", str(error), f"until then no turn can be run {where}")
    if found is None:
        return Check("sessions", "none yet")
    left = f", {count(found.unfinished, 'turn')} unfinished" if found.unfinished else ""
    counted = f"{count(found.sessions, 'session')}{left}, {found.size / 1e6:.1f} MB"
    if url is None:
        return Check("sessions", f"{counted}, every page is whole")
    if found.wrong or not found.version:
        return Check("sessions", f"{found.place}: {found.server}", found.wrong)
    return Check("sessions", f"{found.place}: {found.server}, {counted}, every text is whole")


def _mcp_servers(given: str | None, config: Config) -> Check:
    """Check the MCP servers by starting them, and stop them again."""
    try:
        home = home_of(given, os.environ)
    except ConfigError:
        return Check("mcp servers", "not looked at, because there is no home")
    try:
        servers = McpServers.of(
            None,
            home=home,
            workdir=Path.cwd(),
            clock=SystemClock(),
            settings=Settings.of(None, config.settings),
        )
    except ConfigError as error:
        return Check(
            "mcp servers", mask(str(error)), "correct config.toml in the home, or the FSM_AGENT_… variable"
        )
    if servers is None:
        return Check("mcp servers", "none configured; none is needed")
    try:
        seen = LOOP.run(servers.look())
    finally:
        LOOP.run(servers.aclose())
    todo = (
        ""
        if all(there for there, _ in seen.values())
        else f"see config.toml, and what they said in {home / LOGS}"
    )
    return Check("mcp servers", ", ".join(f"{name}: {words}" for name, (_, words) in seen.items()), todo)


def _sandbox(given: str | None, config: Config) -> Check:
    """Try every backend, so that a person sees the choices."""
    try:
        rules, home = Settings.of(None, config.settings).sandbox, home_of(given, os.environ)
    except ConfigError:
        return Check("sandbox", "not looked at, because the settings or the home cannot be used")
    found, todo = [], ""
    for backend in SANDBOXES:
        place = sandbox_of(rules.model_copy(update={"backend": backend}), Path.cwd(), home)
        try:
            trouble = place.trouble(Path.cwd())
        except ConfigError as error:
            trouble = str(error), "work in another folder, or correct the setting"
        found.append(f"{backend} does not work ({trouble[0]})" if trouble else f"{backend} works")
        todo = trouble[1] if trouble and backend == rules.backend else todo
    return Check("sandbox", mask(f"commands run in: {rules.backend}; {', '.join(found)}"), todo)


def _checkpoints(given: str | None, config: Config) -> Check:
    try:
        files = Checkpoints(
            home_of(given, os.environ), Path.cwd(), Settings.of(None, config.settings).checkpoints
        )
        found = f"none here: {files.trouble}" if files.trouble else f"{len(files.all())} of {files.workdir}"
    except ConfigError:
        return Check("checkpoints", "not looked at, because the settings or the home cannot be used")
    except StoreError as error:
        return Check(
            "checkpoints", str(error), f"until then files are not kept; {files.folder} can be deleted"
        )
    return Check("checkpoints", found)


def _dispatcher(config: Config) -> Check:
    """Report the dispatcher of queued turns, and whether a worker with this table polls it."""
    from fsm_agent.dispatch.dispatcher import dispatcher_of

    try:
        settings = Settings.of(None, config.settings).dispatch
    except ConfigError:
        return Check("dispatcher", "not looked at, because the settings cannot be used")
    try:
        return Check("dispatcher", in_a_loop(dispatcher_of(settings).about()))
    except ConfigError as error:
        return Check("dispatcher", str(error), "correct dispatch.temporal, or start the server")


def _terminal() -> Check:
    console = console_of(sys.stdout)
    encoding = (getattr(sys.stdout, "encoding", None) or "unknown").lower()
    size = (
        f"{console.width} columns, {console.color_system or 'no'} colors"
        if console.is_terminal
        else "no terminal: plain lines"
    )
    todo = "" if encoding.replace("-", "") in ("utf8", "unknown") else "set PYTHONIOENCODING=utf-8"
    return Check("terminal", f"{size}, {encoding}", todo)
