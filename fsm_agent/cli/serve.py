"""``fsm-agent serve``: the agent over HTTP, for programs and browsers, and their keys; and ``fsm-agent acp``:
the agent in an editor, by the Agent Client Protocol."""

from __future__ import annotations

import json
import logging
import os
import secrets
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_args
from urllib.parse import urlsplit

import typer

from fsm_agent.agent import Agent
from fsm_agent.cli.agent_options import let_report, options_of, settings_for
from fsm_agent.cli.arguments import attribute_of
from fsm_agent.cli.chat import COMMANDS, obey
from fsm_agent.cli.options import LIMITS, SHOWN, CliOptions, Home, Json, with_agent
from fsm_agent.cli.screen import clean, moment, say
from fsm_agent.cli.sessions import store_of
from fsm_agent.conversation.parts import Kind
from fsm_agent.dispatch.dispatcher import dispatcher_of
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.settings import Settings
from fsm_agent.support.installation import importing
from fsm_agent.support.local_server import LOOPBACK, bind_port, own_hosts
from fsm_agent.support.redaction import keep_secret, mask
from fsm_agent.support.threads import in_a_loop

if TYPE_CHECKING:
    from fsm_agent.acp import EditorView
    from fsm_agent.serve.doors import Door
    from fsm_agent.serve.keys import KeyRing

LOCAL = (LOOPBACK, "localhost", "::1")
INSECURE = "WARNING: keys and conversations pass over the network as plain text (--insecure)"
SUSPENDS = "approval.unanswered=suspend"
SHAPE = "a function without parameters, or with one (the order), that returns an Agent or (Agent, deps)"

Host = Annotated[str, typer.Option(help="Address to serve at; another than this machine's needs TLS.")]
Port = Annotated[int, typer.Option(help="Port; 0 for any that is free.")]
AppName = Annotated[
    str | None, typer.Option(metavar="MODULE:NAME", help="A function that returns the agent of a turn.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Serve another address without TLS.")]
Certificate = Annotated[str | None, typer.Option(metavar="FILE", help="Certificate chain, as PEM.")]
CertificateKey = Annotated[str | None, typer.Option(metavar="FILE", help="Its private key, as PEM.")]


@dataclass(frozen=True, slots=True)
class ServeTarget:
    """Where and how to serve: ``app`` as ``module:name``, ``workers`` to queue turns instead of running them
    here, files of ``certificate`` and ``key`` for TLS, ``cors`` as origins."""

    host: str
    port: int
    app: str | None
    workers: bool
    insecure: bool
    certificate: str | None
    key: str | None
    cors: Sequence[str]
    most_turns: int

    @property
    def local(self) -> bool:
        """Return whether only this machine can reach it."""
        return self.host in LOCAL

    def check(self) -> None:
        """Raise ``ConfigError`` for a combination that cannot be served."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError(
                "TLS needs both files", self.certificate or self.key, "--tls-cert and --tls-key"
            )
        for path in (self.certificate, self.key):
            if path is not None and not Path(path).is_file():
                raise ConfigError("the file cannot be read", path, "a file as PEM")
        if not self.local and self.certificate is None and not self.insecure:
            raise ConfigError(
                "another address than this machine's needs TLS", self.host,
                "--tls-cert and --tls-key, or --insecure",
            )  # fmt: skip
        for origin in self.cors:
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or f"{parts.scheme}://{parts.netloc}" != origin:
                raise ConfigError("no origin", origin, "https://name.example or http://name.example:port")


@with_agent("yes", "session", *LIMITS, *SHOWN)
def start(
    given: CliOptions,
    host: Host = LOOPBACK,
    port: Port = 0,
    app: AppName = None,
    workers: Annotated[
        bool, typer.Option("--workers", help="Queue turns for `fsm-agent worker`, and run none here.")
    ] = False,
    insecure: Insecure = False,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    cors: Annotated[
        list[str],
        typer.Option(metavar="ORIGIN", help="A site whose pages may ask, such as https://a.example."),
    ] = (),  # type: ignore[assignment]
    most_turns: Annotated[int, typer.Option(help="Turns that run at once here.")] = 256,
) -> int:
    """Serve until a signal comes.

    On this machine a token is printed; other addresses need keys. The first signal hands the running turns
    over, the second one ends this process.
    """
    target = ServeTarget(host, port, app, workers, insecure, tls_cert, tls_key, cors, most_turns)
    target.check()
    with importing("serve", "serving needs"):
        import fsm_agent.serve.server  # noqa: F401 - it needs the extra
    make_agent, store = agents_of(replace(given, source="serve"), app)
    keys, token = keys_of(target, store)
    log_to_stderr()
    in_a_loop(serve_until_a_signal(target, given, make_agent, store, keys, token))
    return 0


def keys_of(target: ServeTarget, store: Store) -> tuple[KeyRing, str]:
    """Return the accepted keys, and the token among them, which is empty if other machines can connect.
    Raises ``ConfigError`` if there would be no key."""
    from fsm_agent.serve.keys import KeyRing

    token = secrets.token_urlsafe(24) if target.local else ""
    keys = KeyRing(store, token)
    if not token and not keys.all():
        raise ConfigError(
            "this address needs keys, and there are none", target.host, "fsm-agent serve keys add NAME"
        )
    keep_secret([token] if token else [])
    return keys, token


def agents_of(given: CliOptions, app: str | None) -> tuple[Callable[..., Any], Store]:
    """Return a factory for the agent of a turn, and the store of all turns. Raises ``ConfigError`` if two
    options define the agent."""
    if app is not None and (given.model or given.tools):
        raise ConfigError("--app says which agent there is", app, "no --model and no --tool")
    given = replace(given, sets=[SUSPENDS, *given.sets])
    if app is not None:
        settings = settings_for(given.home, given.sets)
        store = store_of(given.home, settings)
        let_report(settings)
        return _callable(attribute_of(app, "--app", f"MODULE:NAME of {SHAPE}"), app), store
    options, choice = options_of(given, None)
    print(f"fsm-agent serve: {clean(choice.why)}", file=sys.stderr)
    kept = options["store"]
    assert kept is not None
    return lambda: Agent.of(options), kept


def _callable(found: object, name: str) -> Callable[..., Any]:
    if not callable(found) or isinstance(found, type):
        raise ConfigError("--app is not a factory of agents", name, SHAPE)
    return found


async def serve_until_a_signal(
    target: ServeTarget,
    given: CliOptions,
    make_agent: Callable[..., Any],
    store: Store,
    keys: KeyRing,
    token: str,
    only: Door | None = None,
) -> None:
    """Serve until a signal arrives. ``only``: the one door, instead of all."""
    from fsm_agent.dispatch.service import SessionService
    from fsm_agent.serve.app import app_of
    from fsm_agent.serve.doors import Doors, doors_of
    from fsm_agent.serve.server import Server

    settings = settings_for(given.home, given.sets)
    doors = doors_of(settings.extensions, KeptValues(store)) if only is None else Doors([only], {})
    dispatcher = dispatcher_of(settings.dispatch) if target.workers else None
    service = SessionService(make_agent, store, dispatcher=dispatcher, most_turns=target.most_turns)
    bound = bind_port(target.host, target.port)
    port = bound.getsockname()[1]
    hosts = own_hosts(port) if target.local else None
    app = app_of(service, keys, hosts=hosts, cors=target.cors, doors=doors.open)

    def ready() -> None:
        scheme = "https" if target.certificate else "http"
        host = f"[{target.host}]" if ":" in target.host else target.host
        if not target.local and not target.certificate:
            print(f"fsm-agent serve: {INSECURE}", file=sys.stderr)
        url, behind = f"{scheme}://{host}:{port}", f"  token {token}" if token else ""
        print(f"fsm-agent serve: {url}{behind}", file=sys.stderr, flush=True)
        if token and only is None:
            print(f"fsm-agent serve: its page is {url}/#token={token}", file=sys.stderr, flush=True)
        print(f"fsm-agent serve: doors {', '.join(one.name for one in doors.open)}", file=sys.stderr)
        for name, install in doors.closed.items():
            print(f"fsm-agent serve: the door {name} needs {install}", file=sys.stderr)

    def leaving() -> None:
        print(
            "fsm-agent serve: stopping; turns stop after their next move, and another process continues them",
            file=sys.stderr,
            flush=True,
        )

    server = Server(
        app, service, ready=ready, leaving=leaving, certificate=target.certificate, key=target.key
    )
    await server.serve([bound])


class OneLineFormatter(logging.Formatter):
    """Formats a record with its exception, but without the traceback and secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        error = record.exc_info[1] if record.exc_info else None
        line = f"{record.levelname} {record.getMessage()}" + (f": {error!r}" if error else "")
        return mask(" ".join(line.split()))


def log_to_stderr(audit: int = logging.INFO) -> None:
    """Write warnings, and audit lines from this level on, to standard error without secrets."""
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(OneLineFormatter())
    logging.basicConfig(handlers=[shown], level=logging.WARNING)
    logging.getLogger("fsm_agent.audit").setLevel(audit)


# Keys


def add_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")],
    scope: Annotated[
        list[str],
        typer.Option(help="What it may do: read, run, approve, admin; repeatable. Default: run."),
    ] = (),  # type: ignore[assignment]
    as_json: Json = False,
    home: Home = None,
) -> int:
    """Make a key, and print it once. Only a hash of it is stored."""
    from fsm_agent.serve.keys import KeyRing

    key, whole = in_a_loop(KeyRing(store_of(home)).add(name, scope or ["run"]))
    if as_json:
        print(json.dumps({"id": key.id, "name": key.name, "scopes": key.scopes, "key": whole}))
    else:
        print(whole)
    return 0


def list_keys(as_json: Json = False, home: Home = None) -> int:
    """List the keys, without their secrets."""
    from fsm_agent.serve.keys import KeyRing

    found = KeyRing(store_of(home)).all()
    if as_json:
        print(json.dumps([{"id": k.id, "name": k.name, "scopes": k.scopes, "made": k.made} for k in found]))
        return 0
    for key in found:
        say(f"{key.id}  {moment(key.made)}  {', '.join(key.scopes)}  {key.name}")
    if not found:
        say("There are no keys yet: fsm-agent serve keys add NAME")
    return 0


def remove_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The id of a key, or its name.")],
    home: Home = None,
) -> int:
    """Forget a key: it is refused from then on. Its sessions stay."""
    from fsm_agent.serve.keys import KeyRing

    key = in_a_loop(KeyRing(store_of(home)).remove(name))
    say(f"removed {key.id} ({key.name})")
    return 0


# An editor, over standard input and output.


@with_agent("session", *SHOWN)
def acp(given: CliOptions) -> int:
    """Serve an editor (Agent Client Protocol).

    Messages pass over standard input and output.
    """
    with importing("acp", "an editor needs"):
        from fsm_agent.acp import serve_stdio
    host = CommandLineHost(replace(given, source="acp"))
    if sys.stdin is None or not is_pipe(sys.stdin.fileno()):
        raise ConfigError(
            "an editor starts this command and talks to it", None, "a pipe as standard input; see docs/acp.md"
        )
    log_to_stderr(logging.WARNING)
    return serve_stdio(host)


def is_pipe(number: int) -> bool:
    """Return whether another process can talk over this file descriptor."""
    mode = os.fstat(number).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class CommandLineHost:
    """Creates the agents of an editor's sessions with the options of the command line."""

    commands = COMMANDS
    obey = staticmethod(obey)

    def __init__(self, given: CliOptions) -> None:
        options, choice = options_of(given, None)
        settings = options["settings"]
        assert isinstance(settings, Settings)
        known = {kind for kind in get_args(Kind) if choice.facts.can_read(kind)}
        store = options["store"]
        assert store is not None
        self.store = store
        self.reads = frozenset(known | set(settings.parts.assume))
        self._given = given

    def agent(self, view: EditorView, workdir: Path, session: str | None) -> Agent:
        """Create the agent of a session that works in ``workdir``. A message during a turn waits, as in
        ``chat``, unless the settings say otherwise. Raises ``ConfigError``."""
        asked = {"clarify": view.clarify} | ({"approval": _allow} if self._given.yes else {})
        options, _ = options_of(replace(self._given, session=session), SimpleNamespace(**asked))
        settings = options["settings"]
        assert isinstance(settings, Settings)
        second = settings.interrupt.second_message or "queue"
        interrupt = settings.interrupt.model_copy(update={"second_message": second})
        approval = settings.approval.model_copy(update={"unanswered": "suspend"})
        settings = settings.model_copy(update={"interrupt": interrupt, "approval": approval})
        return Agent.of({**options, "settings": settings, "workdir": workdir})


def _allow(request: object) -> str:
    return "once"
