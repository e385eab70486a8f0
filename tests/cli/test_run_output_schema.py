"""``fsm-agent run --output-schema``: an answer that fits a JSON schema, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fsm_agent.testing import ScriptedServer, text

Cli = Callable[..., tuple[int, str, str]]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def test_the_answer_is_printed_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "city.json").write_text(json.dumps(SCHEMA))
    with ScriptedServer(
        [text("Bern"), text('```json\n{"city": "Zürich"}\n```'), *[text("no")] * 3]
    ) as server:
        asked = ("run", "which?", "--output-schema", f"{tmp_path}/city.json", "--model", "local:m")
        code, out, _ = cli(*asked, "--base-url", server.url)
        assert (code, json.loads(out)) == (0, {"city": "Zürich"})
        code, out, err = cli(*asked, "--base-url", server.url)
        assert code == 1
        assert out == ""
        assert err == "error: The model gave no answer of the type that was asked for: it is no JSON.\n"


def test_the_whole_result_has_it_too(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('{"type": "array", "items": {"type": "integer"}}')
    with ScriptedServer([text("[1, 2]")]) as server:
        code, out, _ = cli(
            "run", "which?", "--json", "--output-schema", f"{tmp_path}/list.json", "--model", "local:m",
            "--base-url", server.url,
        )  # fmt: skip
    assert (code, json.loads(out)["output"], json.loads(out)["final_response"]) == (0, [1, 2], "[1, 2]")
