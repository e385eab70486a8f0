"""A program with the command line of ``docker`` or ``podman`` but no engine: it records its arguments,
and runs the command on this machine.

As with an engine, the command is not a child of the program that was called: killing that one does not end it,
``rm --force`` does. Namespaces, mounts and limits are not made, so what a container keeps in is not shown by it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

PROGRAM = r"""#!{python} -IS
import json, os, signal, subprocess, sys

log, words = {log!r}, sys.argv[1:]
with open(log, "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *words]) + "\n")


def end(name):
    try:
        os.killpg(int(open(log + name).read()), signal.SIGKILL)
    except OSError:
        pass


if words[0] == "rm":
    end(words[-1])
if words[0] == "image" and words[-1] == "missing":
    sys.exit("No such image: missing")
if words[0] != "run":
    sys.exit(0)
flags = {{"--rm", "--init"}}
options, at = {{}}, 1
while words[at].startswith("-"):
    options.setdefault(words[at], []).append("" if words[at] in flags else words[at + 1])
    at += 1 if words[at] in flags else 2
command, name = words[at + 5 :], options["--name"][0]  # behind the image and the shell that waits a little
environ = dict(one.split("=", 1) for one in options["--env"])
signal.signal(signal.SIGTERM, lambda number, _: os.killpg(running.pid, number))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
running = subprocess.Popen(
    command, cwd=options["--workdir"][0], env={{"PATH": os.defpath, **environ}}, start_new_session=True,
    preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]),
)
with open(log + name, "w") as file:
    file.write(str(running.pid))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
code = running.wait()
end(name)
sys.exit(code if code >= 0 else 128 - code)
"""


class RecordedEngine:
    """``docker`` and ``podman`` in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.log = folder / "called"
        for name in ("docker", "podman"):
            program = folder / name
            program.write_text(PROGRAM.format(python=sys.executable, log=str(self.log)))
            program.chmod(0o755)
        self.path = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def calls(self, what: str) -> list[list[str]]:
        """Every command line that began with this word, without the program."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        rows = [json.loads(line) for line in lines]
        return [words[1:] for words in rows if words[1] == what]
