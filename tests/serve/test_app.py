"""Our own addresses: what they answer, what they refuse."""

from __future__ import annotations

import json
from typing import Any

from fsm_agent.testing import text
from tests.serve.conftest import MakeService, WebClient


def sse(body: str) -> list[dict[str, Any]]:
    """The events of a stream: id, event and data of each."""
    found = []
    for block in body.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


async def test_a_turn_over_http(serving: MakeService, web: WebClient) -> None:
    async with serving(text("hello there")) as service, web(service) as client:
        begun = await client.post("/api/turns", json={"content": "hi"})
        assert begun.status_code == 202, begun.text
        stream = sse((await client.get(begun.json()["events"])).text)
        result = (await client.get(begun.json()["result"])).json()
    assert stream[-1]["event"] == "end"
    assert stream[-1]["data"]["final_response"] == result["final_response"] == "hello there"
