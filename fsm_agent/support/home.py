"""The data directory and the working directory of an agent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fsm_agent.errors import ConfigError
from fsm_agent.support.files import private_folder

HOME_ENV = "FSM_AGENT_HOME"
LOGINS = "mcp-logins"
"""The folder of the home directory for logins to MCP servers."""


def home_of(given: str | os.PathLike[str] | None, env: Mapping[str, str]) -> Path:
    """Return the data directory: as given, else ``FSM_AGENT_HOME``, else the platform's. A named one is
    created and must be writable (``ConfigError``); the platform's is created by the first write."""
    named = given or env.get(HOME_ENV)
    if not named:
        from platformdirs import user_data_path

        return user_data_path("fsm-agent")
    path = _path("home", named).expanduser()
    try:
        private_folder(path)
        probe = path / f".write-test-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"the home directory cannot be written ({error.strerror})", str(path), "a writable directory"
        ) from None
    return path


def workdir_of(given: str | os.PathLike[str] | None) -> Path:
    """Return the working directory: as given, else the current one. Raises ``ConfigError`` if it does not
    exist."""
    try:
        path = _path("workdir", given) if given else Path.cwd()
    except OSError:
        raise ConfigError("the current folder has been removed", None, "a folder that is there") from None
    if not path.is_dir():
        raise ConfigError("workdir is no folder", str(path), "a folder that is there")
    return path


def _path(name: str, given: str | os.PathLike[str]) -> Path:
    try:
        return Path(given)
    except TypeError:
        raise ConfigError(f"{name} has the wrong type", given, "a path") from None
