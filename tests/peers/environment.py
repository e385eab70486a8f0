"""A separate environment for a third-party program, made at first use and kept beside the
checkout.

A peer is never installed where the tests run: its dependencies are not ours, and its pytest plugin would load
itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[2] / ".peers"
"""Ignored by git. Remove a folder in it to reinstall that peer."""
INSTALL = ROOT.parent / "requirements" / "install"
SECONDS = 300
"""For the slowest download that is waited for."""


class PeerUnavailable(Exception):
    """The peer is not there and could not be installed; the text says why in one line."""


@cache
def peer_python(distribution: str, version: str, *also: str) -> Path:
    """The interpreter of an environment that holds this version of a distribution. Raises
    ``PeerUnavailable``.

    ``also``: further pins. Then all of them are taken as wheels alone, without what they require: nothing is
    compiled here.

    The environment is built under another name and renamed when it is whole: one that was broken off is never
    taken for one that works, and of two runs that build it at once the first wins. Start modules with ``-m``:
    the scripts of a renamed environment name an interpreter that is gone."""
    home = ROOT / f"{distribution}-{version}"
    python = Path("Scripts", "python.exe") if os.name == "nt" else Path("bin", "python")
    if not (home / python).exists():
        shutil.rmtree(home, ignore_errors=True)  # the interpreter it was made with is gone
        growing = ROOT / f"{home.name}.{uuid4().hex[:8]}"
        try:
            _run(sys.executable, "-m", "venv", "--without-pip", growing)
            alone = ("--no-deps", "--only-binary", ":all:") if also else ()
            packages = (f"{distribution}=={version}", *also)
            env = {"PIP_PYTHON": str(growing / python), "PIP_RETRIES": "1"}
            _run(INSTALL, Path(sys.executable).parent, *alone, *packages, **env)
            _rename(growing, home)
        finally:
            shutil.rmtree(growing, ignore_errors=True)
    return home / python


@cache
def peer_package(package: str, version: str) -> Path:
    """The folder of an npm package at this version, with what it requires beside it. Raises
    ``PeerUnavailable``.

    Nothing that the packages would run while they are installed is run.
    """
    home = ROOT / f"{package.replace('/', '-').removeprefix('@')}-{version}"
    inside = Path("node_modules", *package.split("/"))
    if not (home / inside / "package.json").exists():
        if (npm := shutil.which("npm")) is None or shutil.which("node") is None:
            raise PeerUnavailable("node and npm are not installed")
        growing = ROOT / f"{home.name}.{uuid4().hex[:8]}"
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel", "error")
        try:
            _run(npm, "install", *quiet, "--prefix", growing, f"{package}@{version}")
            _rename(growing, home)
        finally:
            shutil.rmtree(growing, ignore_errors=True)
    return home / inside


def _rename(growing: Path, home: Path) -> None:
    try:
        growing.rename(home)
    except OSError:
        if not home.is_dir():
            raise


def _run(*command: str | Path, **environment: str) -> None:
    ROOT.mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            command,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"could not run {' '.join(map(str, command[1:3]))}: {error}") from None
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or [
            "no reason given"
        ]
        raise PeerUnavailable(f"{' '.join(map(str, command[1:4]))} failed: {said[-1]}")


class PeerProcess:
    """A server as a subprocess that says its address first, and ends when our end of its input is closed,
    however we ended."""

    def __init__(
        self, name: str, command: Sequence[str | Path], forgets: tuple[str, ...], **more: str
    ) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith((*forgets, "PYTHON"))}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([*command], env={**kept, **more}, text=True, **pipes)
        assert self._process.stdout is not None
        self.root = self._process.stdout.readline().strip()
        if not self.root:
            self.close()
            raise RuntimeError(
                f"{name} ended with status {self._process.returncode} before it served anything"
            )

    def ask(self, path: str, body: object = None, method: str | None = None) -> Any:
        """The JSON that it answers."""
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.root + path, data, kind, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as response:
            return json.load(response)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
