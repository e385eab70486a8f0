"""``python -m tests.helpers.certificates``: write the certificate of each table of the project and let
``check_certificate.py`` check it, in a process that has nothing of ours; 1 when one is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import examples.nested
import examples.order
import examples.parallel
import examples.review_loop
from fsm_agent.diagram.model import diagram_of
from fsm_agent.diagram.table_json import as_json
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify import check_certificate
from fsm_agent.fsm.verify.certificate import certificate
from fsm_agent_states.table import COMPACTION, TURN

TABLES: Mapping[str, tuple[Table, Mapping[str, int] | None]] = {
    "turn": (TURN, TURN.default_limits() if TURN.default_limits else None),
    "compaction": (COMPACTION, COMPACTION.default_limits() if COMPACTION.default_limits else None),
    "order": (examples.order.TABLE, examples.order.LIMITS),
    "review": (examples.review_loop.TABLE, examples.review_loop.LIMITS),
    "shop": (examples.nested.TABLE, examples.nested.LIMITS),
    "book": (examples.parallel.TABLE, examples.parallel.LIMITS),
}


def form_of(table: Table) -> dict[str, Any]:
    """The table as ``fsm-agent diagram --format json`` writes it."""
    form: dict[str, Any] = json.loads(as_json(diagram_of(table)))
    return form


def certificate_of(table: Table, limits: Mapping[str, int] | None = None, *, runs: bool = True) -> Any:
    """The certificate as it is read back from a file."""
    return json.loads(json.dumps(certificate(table, limits, runs=runs)))


def check_files(folder: Path, made: object, form: object) -> subprocess.CompletedProcess[str]:
    """What the checker says of two JSON values, in a process of its own."""
    files = folder / "certificate.json", folder / "table.json"
    for file, value in zip(files, (made, form), strict=True):
        file.write_text(json.dumps(value), encoding="utf-8")
    command = [sys.executable, "-I", check_certificate.__file__, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for table, limits in TABLES.values():
            said = check_files(Path(folder), certificate(table, limits), form_of(table))
            failed |= said.returncode
            if said.returncode:
                print(said.stdout or said.stderr, end="")
    return failed


if __name__ == "__main__":
    sys.exit(main())
