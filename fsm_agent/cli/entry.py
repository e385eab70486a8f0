"""Entering and leaving the program: every wrong use is one line on standard error and exit code 2, never a
traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any

import typer

from fsm_agent.cli import exporting
from fsm_agent.cli.app import app
from fsm_agent.cli.screen import clean
from fsm_agent.errors import ConfigError, FsmAgentError, SessionBusy, StoreError
from fsm_agent.support.installation import installed_extensions

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_UsageError: type[Exception] = typer.BadParameter.__mro__[
    2
]  # typer gives the root of its own errors no public name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 completed, 1 failed, 2 wrong use, 3 partial, 4 suspended,
    130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a replaced stream may not have it
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        code = _command(given[0] if given else "")(args=given, prog_name="fsm-agent", standalone_mode=False)
        sys.stdout.flush()
    except (ConfigError, SessionBusy, StoreError) as error:
        return _complain(str(error))
    except FsmAgentError as error:
        return _complain(str(error), FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python complains once more at its end
        return FAILED
    except _UsageError as error:
        return _complain(getattr(error, "format_message", error.__str__)())
    finally:
        exporting.finish()
    return code if isinstance(code, int) else 0


@cache
def _command(first: str) -> Any:
    """The commands as typer makes them of their signatures, once a process: the one that the first word
    names, or all where it names none."""
    named = copy(app)
    named.registered_commands = [one for one in app.registered_commands if _named(one) == first]
    named.registered_groups = [one for one in app.registered_groups if one.name == first]
    known = named.registered_commands or named.registered_groups
    if not known and (of_extension := commands_of(first)) is not None:
        named.add_typer(of_extension, name=first)
        known = named.registered_groups
    return typer.main.get_command(named if known else app)


def commands_of(name: str) -> typer.Typer | None:
    """The commands of an installed extension; it is loaded only when it is called by its name."""
    if not name or name.startswith("-") or name not in installed_extensions():
        return None
    from fsm_agent.extension import loaded

    commands = loaded(name).commands()
    if commands is None:
        return None
    if not isinstance(commands, typer.Typer):
        raise ConfigError(
            f"commands of extension {name} cannot be used", type(commands).__name__, "a typer.Typer"
        )
    return commands


def _named(command: Any) -> str:
    """How a command is called: as its function is, where it has no other name."""
    return command.name or typer.main.get_command_name(command.callback.__name__)


def _complain(message: str, code: int = USAGE) -> int:
    line = " ".join(clean(message).split())
    if line:
        print(f"fsm-agent: {line}", file=sys.stderr)
    return code
