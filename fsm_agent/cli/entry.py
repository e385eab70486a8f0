"""Entering and leaving the program: every wrong use is one line on standard error and exit code 2, never a
traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from fsm_agent.cli.app import app
from fsm_agent.cli.screen import clean
from fsm_agent.errors import ConfigError, FsmAgentError, SessionBusy, StoreError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_UsageError: type[Exception] = typer.BadParameter.__mro__[
    2
]  # typer gives the root of its own errors no public name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 completed, 1 failed, 2 wrong use, 3 partial, 130
    interrupted."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a replaced stream may not have it
    try:
        given = None if arguments is None else list(arguments)
        code = _command()(args=given, prog_name="fsm-agent", standalone_mode=False)
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
    return code if isinstance(code, int) else 0


@cache
def _command() -> Any:
    """The commands as typer makes them of their signatures, once a process."""
    return typer.main.get_command(app)


def _complain(message: str, code: int = USAGE) -> int:
    line = " ".join(clean(message).split())
    if line:
        print(f"fsm-agent: {line}", file=sys.stderr)
    return code
