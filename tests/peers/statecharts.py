"""Engines of others, each in a process of its own: python-statemachine reads SCXML, XState reads JSON."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.peers.environment import PeerUnavailable, peer_package, peer_python

STATEMACHINE = ("python-statemachine", "3.2.2")
XSTATE = ("xstate", "5.33.3")
PAGE = Path(__file__).parents[2] / "docs" / "diagrams.md"
_SETUP = re.compile(r'```js title="machine.mjs"\n(.*?)```', re.DOTALL)

# Version 3.2.2 fills the data of a loaded class in its first machine only, so the driver does it in the others.
_DRIVE_SCXML = """
import json, sys
from statemachine.io import load
answers = []
for job in json.load(sys.stdin):
    machine, paths = load(job["text"], format="scxml"), []
    data = {name: value for name, value in vars(machine().model).items() if name != "state"}
    for events in job["events"]:
        one, path = machine(), []
        vars(one.model).update(data)
        for event in events:
            one.send(event)
            path.append([next(iter(one.configuration)).id, one.model.row, one.model.exit])
        paths.append(path)
    answers.append(paths)
json.dump(answers, sys.stdout)
"""
_DRIVE_XSTATE = """
import { readFileSync } from "node:fs";
import { initialTransition, transition } from "xstate";
import { machineOf } from "./machine.mjs";
const answers = [];
for (const { text, events } of JSON.parse(readFileSync(0, "utf8"))) {
  const machine = machineOf(JSON.parse(text));
  answers.push(events.map((some) => {
    let [now] = initialTransition(machine);
    return some.map((type) => {
      [now] = transition(machine, now, { type });
      return [now.value, now.context.row ?? "", now.context.exit ?? ""];
    });
  }));
}
console.log(JSON.stringify(answers));
"""

Place = tuple[str, str, str]
"""A state, the row taken last, the exit reason; texts are empty before there is one."""


@dataclass(frozen=True)
class Job:
    """A machine in the language of its engine, and sequences of events to send to it."""

    text: str
    events: list[list[str]]


def drive_scxml(jobs: Sequence[Job]) -> list[list[list[Place]]]:
    """The places after each event, by job and sequence, as python-statemachine has them. Raises
    ``PeerUnavailable``."""
    return _driven([peer_python(*STATEMACHINE), "-c", _DRIVE_SCXML], jobs)


def drive_xstate(jobs: Sequence[Job]) -> list[list[list[Place]]]:
    """The same of XState, with the setup code of the page. Raises ``PeerUnavailable``."""
    node, folder = shutil.which("node"), peer_package(*XSTATE).parents[1]
    if node is None:
        raise PeerUnavailable("node is not installed")
    (setup,) = _SETUP.findall(PAGE.read_text("utf-8"))
    (folder / "machine.mjs").write_text(setup, "utf-8")
    (folder / "drive.mjs").write_text(_DRIVE_XSTATE, "utf-8")
    return _driven([node, folder / "drive.mjs"], jobs)


def _driven(command: Sequence[str | Path], jobs: Sequence[Job]) -> list[list[list[Place]]]:
    done = subprocess.run(
        command, input=json.dumps([asdict(job) for job in jobs]),
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [[[tuple(place) for place in path] for path in paths] for paths in json.loads(done.stdout)]
