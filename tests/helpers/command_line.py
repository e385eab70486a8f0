"""Commands that run in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest


class Cli:
    """Called with the words of a command, it returns the exit code, standard output and standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        from fsm_agent.cli import main

        self._capsys.readouterr()  # what was printed before is not the command's
        code = main(arguments)
        return code, *self._capsys.readouterr()

    def ok(self, *arguments: str) -> str:
        """The standard output of a command that succeeds."""
        code, out, err = self(*arguments)
        assert code == 0, err
        return out

    def json(self, *arguments: str) -> Any:
        """What a command says as JSON, and nothing else."""
        code, out, err = self(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    def refused(self, *arguments: str) -> str:
        """The standard error of a command that is wrong use."""
        code, out, err = self(*arguments)
        assert (code, out) == (2, "")
        return err
