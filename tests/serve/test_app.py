"""Our own addresses: what they answer, what they refuse."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fsm_agent.dispatch.service import SCOPES, SessionService
from fsm_agent.serve import web as web_module
from fsm_agent.serve.app import OPERATIONS, openapi
from fsm_agent.serve.guard import GuardLimits
from fsm_agent.serve.keys import KeyRing
from fsm_agent.serve.server import COLLECT, short_collections
from fsm_agent.sessions.store import Store
from fsm_agent.testing import text
from tests.serve.conftest import TOKEN, MakeService, WebClient

EXAMPLE = {"content": "hi", "text": "x", "value": "once", "at": 1}
JSON = {"content-type": "application/json"}


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


def nested_documents(depth: int) -> bytes:
    """A message whose only part is a document, whose only part is a document, and so on."""
    begin = b'{"type": "document", "source": {"type": "content", "content": ['
    return b'{"content": [' + begin * depth + b"]}}" * depth + b"]}"


def refused(answer: Any, status: int, code: str) -> str:
    """An error in our own form, without anything of our insides; its message."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert "Traceback" not in answer.text
    assert ".py" not in answer.text
    return str(answer.json()["error"]["message"])


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for one in pieces:
        yield one


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_request"), (b"{", 400, "bad_request"), (b"[]", 400, "bad_request"),
        (b'"text"', 400, "bad_request"), (b'{"content": NaN}', 400, "bad_request"),
        (b"[" * 100_000, 400, "bad_request"), (b"\xff\xfe", 400, "bad_request"),
        (b'{"content": 3}', 400, "bad_request"), (b'{"content": "hi", "tools": []}', 400, "bad_request"),
        (b'{"content": "hi", "turn_id": "../x"}', 400, "bad_request"),
        (b'{"content": "hi", "waits": "perhaps"}', 400, "bad_request"),
        (b'{"content": ""}', 400, "bad_request"), (rb'{"content": "\ud800"}', 400, "bad_request"),
        (rb'{"content": "hi", "\ud800": 1}', 400, "bad_request"), (nested_documents(300), 400, "bad_request"),
    ],
)  # fmt: skip
async def test_a_malformed_body_is_refused_in_a_line(
    serving: MakeService, web: WebClient, body: bytes, status: int, code: str
) -> None:
    async with serving(text("hello")) as service, web(service) as client:
        said = refused(await client.post("/api/turns", content=body, headers=JSON), status, code)
        assert len(said) < 300
        assert (await client.get("/api/sessions")).json() == {"sessions": []}


async def test_a_huge_body_is_not_read(serving: MakeService, web: WebClient, monkeypatch: Any) -> None:
    async with serving(text("hello")) as service, web(service) as client:
        huge = {**JSON, "content-length": str(2**40)}
        refused(await client.post("/api/turns", content=b"{}", headers=huge), 413, "too_large")
        monkeypatch.setattr(web_module, "MOST_BODY", 1000)
        many = chunks(*[b" " * 100] * 100)
        refused(await client.post("/api/turns", content=many, headers=JSON), 413, "too_large")
        other = {"content-type": "text/plain"}
        refused(await client.post("/api/turns", content=b"{}", headers=other), 400, "bad_request")


async def test_a_slow_body_is_given_up(serving: MakeService, web: WebClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(web_module, "BODY_SECONDS", 0.01)

    async def stuck() -> AsyncIterator[bytes]:
        yield b'{"content": '
        await asyncio.Event().wait()

    async with serving(text("hello")) as service, web(service) as client:
        refused(await client.post("/api/turns", content=stuck(), headers=JSON), 408, "too_slow")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"host": "evil.example"}, 421, "misdirected"), ({"host": "127.0.0.1:9"}, 421, "misdirected"),
        ({"origin": "https://evil.example"}, 403, "forbidden"), ({"origin": "null"}, 403, "forbidden"),
        ({"sec-fetch-site": "cross-site"}, 403, "forbidden"),
        ({"sec-fetch-site": "same-site"}, 403, "forbidden"), ({"authorization": ""}, 401, "unauthorized"),
        ({"authorization": "Bearer "}, 401, "unauthorized"),
        ({"authorization": f"Basic {TOKEN}"}, 401, "unauthorized"),
        ({"authorization": f"Bearer {TOKEN}x"}, 401, "unauthorized"),
        ({"authorization": f"Bearer fsm-00000000-{'a' * 43}"}, 401, "unauthorized"),
    ],
)  # fmt: skip
async def test_what_comes_from_elsewhere_is_refused(
    serving: MakeService, web: WebClient, headers: dict[str, str], status: int, code: str
) -> None:
    async with serving(text("hello")) as service, web(service, hosts=["127.0.0.1:8000"]) as client:
        refused(await client.post("/api/turns", json={"content": "hi"}, headers=headers), status, code)
        refused(await client.get("/api/sessions", headers=headers), status, code)
        assert (await client.get("/api/sessions")).json() == {"sessions": []}


async def test_a_page_of_this_server_and_a_named_site_may_ask(serving: MakeService, web: WebClient) -> None:
    there, preflight = "https://app.example", {"access-control-request-method": "POST"}
    async with serving(text("hello")) as service, web(service, cors=[there]) as client:
        own = await client.get("/api/sessions", headers={"origin": "http://127.0.0.1:8000"})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers
        asked = await client.options("/api/turns", headers={"origin": there, **preflight})
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, there)
        assert "authorization" in asked.headers["access-control-allow-headers"]
        site = {"origin": there, "sec-fetch-site": "cross-site"}
        assert (await client.get("/api/sessions", headers=site)).headers[
            "access-control-allow-origin"
        ] == there
        refused(
            await client.options("/api/turns", headers={"origin": "https://evil.example", **preflight}),
            403,
            "forbidden",
        )


async def test_every_address_of_ours_needs_its_scope(
    serving: MakeService, web: WebClient, store: Store
) -> None:
    keys = KeyRing(store)
    made = {scope: (await keys.add(scope, [scope]))[1] for scope in SCOPES}
    async with serving(text("hello")) as service:
        for one in OPERATIONS:
            path = re.sub(r"\{\w+\}", "nothing", one.path)
            without = "read" if one.scope == "run" else "approve"
            async with web(service, key=made[without]) as client:
                fields = one.body.model_fields if one.body is not None else ()
                body = {name: given for name, given in EXAMPLE.items() if name in fields}
                answer = await client.request(one.method, path, json=body)
                assert answer.status_code in (403, 404), (one, answer.text)
            async with web(service, key="") as client:
                refused(await client.request(one.method, path), 401, "unauthorized")


async def test_keys_are_stored_hashed_listed_and_removed(store: Store) -> None:
    keys = KeyRing(store)
    key, whole = await keys.add("Ann", ["run", "approve"])
    caller = keys.caller(whole)
    assert caller is not None
    assert (caller.id, caller.name, caller.scopes) == (key.id, "Ann", {"run", "approve"})
    stored = store.database.select("SELECT value FROM kept_values")
    assert whole not in str(stored)
    assert whole.split("-", 2)[2] not in str(stored)
    assert keys.caller(whole[:-1] + ("a" if whole[-1] != "a" else "b")) is None
    assert [one.name for one in keys.all()] == ["Ann"]
    await keys.remove("Ann")
    assert keys.caller(whole) is None
    assert keys.all() == []


async def test_wrong_keys_and_many_requests_are_slowed_down(serving: MakeService, web: WebClient) -> None:
    limits = GuardLimits(rate=0.001, burst=3, wrong=2)
    async with serving(text("hello")) as service, web(service, limits=limits) as client:
        wrong = {"authorization": "Bearer wrong"}
        statuses = [(await client.get("/api/sessions", headers=wrong)).status_code for _ in range(4)]
        assert statuses == [401, 401, 429, 429]
    async with serving(text("hello")) as service, web(service, limits=limits) as client:
        answers = [await client.get("/api/sessions") for _ in range(4)]
        assert [one.status_code for one in answers] == [200, 200, 200, 429]
        assert answers[-1].headers["retry-after"] == "1"


async def test_what_is_not_there_is_answered_in_our_form(serving: MakeService, web: WebClient) -> None:
    async with serving(text("hello")) as service, web(service) as client:
        for path in ("/api/turns/nothing", "/api/sessions/nothing", "/api/turns/nothing/events", "/nothing",
                     "/api/turns/nothing/result", "/.env", "/api/turns/%00"):  # fmt: skip
            refused(await client.get(path), 404, "not_found")
        refused(await client.delete("/api/sessions"), 405, "refused")
        turn = (await client.post("/api/turns", json={"content": "hi"})).json()["turn"]
        refused(await client.get(f"/api/turns/{turn}/events?after=x"), 400, "bad_request")
        refused(await client.get("/api/sessions?limit=many"), 400, "bad_request")
        assert (await client.get(f"/api/turns/{turn}/result")).json()["final_response"] == "hello"


async def test_a_bug_is_an_answer_without_a_traceback(
    serving: MakeService, web: WebClient, monkeypatch: Any, caplog: Any
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("secret insides")

    monkeypatch.setattr(SessionService, "sessions", broken)
    async with serving(text("hello")) as service, web(service) as client:
        answer = await client.get("/api/sessions")
    assert refused(answer, 500, "failed") == "the server failed"
    assert "secret insides" in caplog.text


async def test_health_and_the_document_need_no_key(serving: MakeService, web: WebClient) -> None:
    async with serving(text("hello")) as service, web(service, key="") as client:
        assert (await client.get("/health")).json()["status"] == "ok"
        answer = await client.get("/openapi.json", headers={"sec-fetch-site": "cross-site"})
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json() == openapi()
        refused(await client.post("/health"), 401, "unauthorized")


def test_the_document_names_every_address_of_ours(store: Store) -> None:
    document = openapi()
    described = {(method.upper(), path) for path, about in document["paths"].items() for method in about}
    assert described == {(one.method, one.path) for one in OPERATIONS}
    for about in (about for path in document["paths"].values() for about in path.values()):
        for named in re.findall(r"#/components/schemas/(\w+)", json.dumps(about)):
            assert named in document["components"]["schemas"]


async def test_audit_lines_say_who_did_what_and_nothing_that_was_said(
    serving: MakeService, web: WebClient, caplog: Any
) -> None:
    caplog.set_level("INFO", "fsm_agent.audit")
    async with serving(text("hello")) as service, web(service) as client:
        await client.post("/api/turns", json={"content": "a private word"})
        await client.get("/api/sessions", headers={"authorization": "Bearer wrong-key"})
    lines = [json.loads(one.getMessage()) for one in caplog.records if one.name == "fsm_agent.audit"]
    assert [one["do"] for one in lines] == ["start", "refuse"]
    assert lines[0]["key"] == "local"
    assert "private" not in caplog.text
    assert "wrong-key" not in caplog.text


def test_a_server_looks_for_garbage_often_and_leaves_the_process_as_it_was() -> None:
    before = gc.get_threshold()
    with short_collections():
        assert gc.get_threshold() == COLLECT
        assert gc.get_freeze_count() > 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
