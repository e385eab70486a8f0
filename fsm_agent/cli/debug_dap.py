"""``fsm-agent debug --stdio`` and ``--dap``: editors, by the Debug Adapter Protocol."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsm_agent.cli.debug import debug_session_of, debug_session_of_table
from fsm_agent.cli.options import CliOptions
from fsm_agent.debug import DebugSession
from fsm_agent.debug.dap import LaunchOptions, serve_port, serve_stdio
from fsm_agent.errors import ConfigError
from fsm_agent.support.redaction import environment_keys


def serve(session: DebugSession, first: str | None, at: str | None, given: CliOptions) -> int:
    """Serve one editor until it leaves; exit code 0. ``at``: a port or the path of a socket, ``None`` for
    standard input and output. ``given`` is what the command line said; a launch configuration may say
    otherwise, for its own session."""
    home = given.home or str(session.store.home)

    def opener(options: LaunchOptions) -> DebugSession:
        _enter(options)
        if options.table is not None:
            return debug_session_of_table(
                options.table,
                replace(given, home=options.home or given.home, sets=[*given.sets, *_sets(options.settings)]),
            )
        return debug_session_of(_given(replace(given, home=home), options))

    secrets = [*environment_keys(os.environ), *([given.api_key] if given.api_key else [])]
    if at is None:
        return serve_stdio(session, first, opener, secrets)
    place = int(at) if re.fullmatch(r"-?\d{1,9}", at) else Path(at)
    return serve_port(session, first, opener, place, secrets, _tell)


def _tell(where: str, token: str) -> None:
    print(f"{where}  token {token}" if token else where, file=sys.stderr, flush=True)


def _enter(options: LaunchOptions) -> None:
    """The folder and the environment of the configuration are this process's: it serves one session."""
    if options.cwd is not None:
        try:
            os.chdir(options.cwd)
        except OSError as error:
            raise ConfigError(
                f"cannot work in this folder ({error.strerror})", options.cwd, "a folder"
            ) from None
    os.environ.update(options.env)


def _given(given: CliOptions, options: LaunchOptions) -> CliOptions:
    named = {
        "model": options.model, "base_url": options.base_url, "home": options.home,
        "session": options.session,
        "max_iterations": options.max_iterations,
    }  # fmt: skip
    said = {name: value for name, value in named.items() if value is not None}
    return replace(given, sets=[*given.sets, *_sets(options.settings)], **said)  # type: ignore[arg-type]  # checked by LaunchOptions


def _sets(settings: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Nested settings in the form of ``--set``."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _sets(value, f"{before}{name}.")
        else:
            yield f"{before}{name}={json.dumps(value)}"
