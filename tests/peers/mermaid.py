"""Mermaid itself, under node: what its own parser makes of a text, and the picture that it draws."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from html import unescape
from pathlib import Path

from tests.helpers.diagram_reading import Seen
from tests.peers.environment import PeerUnavailable, peer_package

MERMAID = ("mermaid", "12.3.0")
JSDOM = ("jsdom", "26.1.0")  # the newest that needs no newer node than 18
_READ = """
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { readFileSync } from 'node:fs';
const [mermaidEntry, jsdomFolder] = process.argv.slice(1);
const { JSDOM } = createRequire(import.meta.url)(jsdomFolder);
const { window } = new JSDOM('<!doctype html><body></body>');
globalThis.window = window;
globalThis.document = window.document;
const { default: mermaid } = await import(pathToFileURL(mermaidEntry));
mermaid.initialize({ startOnLoad: false });
const answers = [];
for (const text of JSON.parse(readFileSync(0, 'utf8'))) {
  try {
    const { type, db } = await mermaid.mermaidAPI.getDiagramFromText(text);
    const { nodes, edges } = db.getData();
    answers.push({
      type,
      title: db.getDiagramTitle(),
      states: nodes.map(({ id, label, description }) => [id, label, description ?? []]),
      arrows: edges.map(({ start, end, label }) => [start, end, label ?? '']),
    });
  } catch (error) {
    answers.push({ error: String(error) });
  }
}
console.log(JSON.stringify(answers));
"""


def read(texts: Sequence[str]) -> list[Seen]:
    """What Mermaid's parser sees in each text. Raises ``AssertionError`` for one that it refuses,
    ``PeerUnavailable``."""
    node = shutil.which("node")
    if node is None:
        raise PeerUnavailable("node is not installed")
    entry, jsdom = _entry(), peer_package(*JSDOM)
    done = subprocess.run(
        [node, "--input-type=module", "--eval", _READ, entry, jsdom],
        input=json.dumps(list(texts)), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [_seen(answer) for answer in json.loads(done.stdout)]


def _entry() -> Path:
    return peer_package(*MERMAID) / "dist" / "mermaid.core.mjs"


def _seen(answer: dict[str, object]) -> Seen:
    assert "error" not in answer, answer["error"]
    assert answer["type"] == "stateDiagram"
    states: list[tuple[str, str, list[str]]] = answer["states"]
    arrows: list[tuple[str, str, str]] = answer["arrows"]
    lines = {name: [unescape(line) for line in said] for name, _, said in states}
    return Seen(lines, {(start, end): unescape(label) for start, end, label in arrows})
