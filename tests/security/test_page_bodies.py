"""Whatever is sent to the page by who has the token: an answer in one line, never a failure of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from fsm_agent import Agent
from fsm_agent.debug import DebugSession
from fsm_agent.debug.core.commands import NAMES
from fsm_agent.debug.web.app import app_of
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import FakeClock, ScriptedModel, call, text, tools

TOKEN = "the-token-of-this-test"
KNOWN = (
    "text", "at", "edit", "all", "seq", "breakpoint", "id", "said", "kinds", "message", "kind", "target", "condition", "hits",
    "log", "enabled", "counters", "messages", "reply", "outcomes", "settings", "limits", "state", "role", "content", "once",
    "tool_calls", "fields", "append", "replace", "results", "drop", "rerun", "row", "values", "turn", "source",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    10**400, -1, 1e308, -0.0, True, None, "", "\ud800", "\0", "x" * 5000, "CallLLM", "state", "1", [], {},
    [[]], [{}],
)  # fmt: skip
WORDS = st.one_of(st.sampled_from(KNOWN), st.text(max_size=5))
VALUES = st.recursive(
    st.one_of(st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=20), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=8,
)
BODIES = st.one_of(
    st.dictionaries(WORDS, VALUES, max_size=5).map(lambda value: json.dumps(value).encode()),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=60),
    st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"1" * 10_000, b'{"at": 1' + b"0" * 5000 + b"}", b'"\\ud800"', b"\xff", b""]),
)  # fmt: skip
EDITS = [
    "counters", "fields", "messages", "reply", "results", "settings", "system_prompt", "user_message",
    "rerun_tools",
]  # fmt: skip
PLACES = f"retries iterations 0 1 -1 {'9' * 30} c1 max_iterations prefetched reply runtime".split()
NAMES_OF = st.one_of(WORDS, st.sampled_from(PLACES))
EDITED = st.one_of(VALUES, st.dictionaries(NAMES_OF, VALUES, max_size=3))
CHANGES = st.dictionaries(st.sampled_from(EDITS), EDITED, min_size=1, max_size=2)
CALL = st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "arguments", "id"), VALUES))
REPLY = st.fixed_dictionaries({}, optional={"text": VALUES, "tool_calls": st.lists(CALL, max_size=2)})
KIND = {"kind": st.sampled_from(["state", "event", "row", "arrow", "exit", 1])}
TARGET = {"target": st.sampled_from(["CallLLM", "done", "failed", "CallLLM->x"])}
MORE = dict.fromkeys(("condition", "hits", "log", "enabled", "id"), VALUES)
BREAKPOINT = st.fixed_dictionaries(KIND, optional=MORE | TARGET)
TURNS = ("TURN", "nothing", "%00", "..", "a" * 3000, "%ff", "'", "%F0%9F%98%80")
QUERIES = st.dictionaries(
    st.sampled_from(["first", "last", "at", "after", "buckets", "limit", "text", "left", "right", "back", "kind", "limits", "condition"]),
    st.one_of(st.sampled_from(["TURN", "-1", "9" * 30, "9" * 5000, "²", "٣", "x", "", "1", "0"]), st.text(max_size=8)),
    max_size=4,
)  # fmt: skip


class Page:
    def __init__(self, home: Path) -> None:
        store = store_for(home, "normal")

        def agent(hint: str | None) -> Agent:
            script = [tools(call("nothing", {})), text("done")]
            return Agent(ScriptedModel(script), toolsets=[], clock=FakeClock(), home=home, store=store)

        with agent(None) as made:
            made.run_conversation("tell me")
        self.turn = made.journal.recent(1)[0].id
        self.session = DebugSession(store, agent)
        app = app_of(self.session, 80, TOKEN)
        self.paths = [(str(route.path), sorted(route.methods or ())) for route in app.routes]  # type: ignore[attr-defined]
        self.client = TestClient(app, base_url="http://127.0.0.1:80", raise_server_exceptions=False)
        kind, host = "application/json", "127.0.0.1:80"
        self.client.headers.update({"x-fsm-agent-token": TOKEN, "content-type": kind, "host": host})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    made = Page(tmp_path_factory.mktemp("page") / "home")
    yield made
    made.session.close()


def looked_at(answer: Any, *, sent: Any = None) -> None:
    assert answer.status_code in (200, 304, 400, 404, 405), (answer.status_code, answer.text, sent)
    if answer.status_code == 400:
        said = answer.json()["error"]
        assert said
        assert "\n" not in said


POSTS = (
    "/api/turns", "/api/import", "/api/markdown", "/api/pending/{item}", "/api/turns/{turn}/breakpoints",
    "/api/turns/{turn}/fork", "/api/turns/{turn}/resume",
)  # fmt: skip
ORDERS = tuple(f"/api/turns/{{turn}}/orders/{name}" for name in (*NAMES, "nothing"))
LIMITS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@LIMITS
@given(st.sampled_from([*POSTS, *ORDERS]), st.sampled_from(TURNS), BODIES)
def test_any_body_is_answered(page: Page, path: str, turn: str, body: bytes) -> None:
    where = path.replace("{turn}", page.turn if turn == "TURN" else turn).replace("{item}", turn)
    looked_at(page.client.post(where, content=body), sent=(where, body))


@LIMITS
@example(0, {"fields": {"reply": 5}})
@example(2, {"user_message": [5]})
@example(2, {"messages": {"0": {"role": "user", "content": 5}}})
@given(st.one_of(st.integers(0, 8), VALUES), st.one_of(CHANGES, REPLY.map(lambda said: {"reply": said})))
def test_any_change_of_a_fork_is_answered(page: Page, at: Any, edit: Any) -> None:
    body = json.dumps({"at": at, "edit": edit}).encode()
    looked_at(page.client.post(f"/api/turns/{page.turn}/fork", content=body), sent=body)


@LIMITS
@given(st.lists(BREAKPOINT, max_size=3))
def test_any_breakpoint_is_answered(page: Page, points: Any) -> None:
    body = json.dumps({"all": points}).encode()
    looked_at(page.client.post(f"/api/turns/{page.turn}/breakpoints", content=body), sent=body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/turns", b"[]"), ("/api/turns", b"{"), ("/api/turns", b'{"text": 1}'), ("/api/turns", b"\xff"),
        ("/api/turns", b"[" * 100_000), ("/api/import", b'{"text": null}'), ("/api/turns/TURN/fork", b'{"at": "1"}'),
        ("/api/turns/TURN/fork", b'{"at": true}'), ("/api/turns/TURN/fork", b'{"at": 1, "edit": 5}'),
        ("/api/turns/TURN/breakpoints", b'{"all": 7}'), ("/api/turns/TURN/breakpoints", b'{"all": [1]}'),
        ("/api/turns/TURN/orders/steer", b'{"text": []}'), ("/api/turns/TURN/orders/hold", b'{"kinds": {"a": 1}}'),
        ("/api/turns/TURN/orders/answer", b'{"id": 1.5}'),
    ],
)  # fmt: skip
def test_a_body_of_another_form_is_refused_in_one_line(page: Page, path: str, body: bytes) -> None:
    answer = page.client.post(path.replace("TURN", page.turn), content=body)
    assert answer.status_code == 400
    looked_at(answer)


GETS = (
    "/api/hello", "/api/turns", "/api/pending", "/api/insights", "/api/compare", "/static/{at}", "/static/../x",
    *(f"/api/turns/{{turn}}{rest}" for rest in ("", "/moves", "/lanes", "/time", "/tools", "/filter", "/find", "/seek", "/test", "/export", "/condition")),
    *(f"/api/turns/{{turn}}/at/{{at}}{rest}" for rest in ("", "/messages", "/messages/{at}", "/wire", "/choices")),
)  # fmt: skip


@LIMITS
@given(
    st.sampled_from(GETS), st.sampled_from(TURNS),
    st.sampled_from(["0", "1", "999", "9" * 30, "9" * 5000, "x", "²"]), QUERIES,
)  # fmt: skip
def test_any_address_is_answered(page: Page, path: str, turn: str, at: str, query: dict[str, str]) -> None:
    where = path.replace("{turn}", page.turn if turn == "TURN" else turn).replace("{at}", at)
    query = {name: page.turn if value == "TURN" else value for name, value in query.items()}
    looked_at(page.client.get(where, params=query), sent=(where, query))


def test_every_route_is_tried(page: Page) -> None:
    tried = {*GETS, *POSTS}
    tried |= {path.replace("/messages/{at}", "/messages/{index}") for path in GETS}
    assert {path for path, _ in page.paths} - tried == {
        "/", "/static/{path:path}", "/api/turns/{turn}/events", "/api/turns/{turn}/orders/{order}",
    }  # fmt: skip
