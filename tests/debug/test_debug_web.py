"""The page's program: who may talk to it, what it answers, and what it never says."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from examples import order, review_loop
from fsm_agent import Agent, tool
from fsm_agent.debug import DebugSession
from fsm_agent.debug.web.app import DebugServer
from fsm_agent.debug.web.page import assets, bare, map_of
from fsm_agent.diagram.layout import map_of as readme_map_of
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.fsm.table import Table
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.insights import insights
from fsm_agent.support.redaction import mask_json
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, text, tools
from fsm_agent_states.table import TURN
from tests.helpers.harness import MakeAgent
from tests.helpers.waiting import PATIENCE

KEY = "sk-live-0123456789abcdef"
OWN = "correct-horse-battery"


@tool(effect="pure")
def secrets() -> dict[str, str]:
    """Say what should not be said."""
    return {"api_key": "plain-value-1234", "note": f"the key is {KEY}", "own": OWN}


def script(body: dict[str, Any]) -> Any:
    return text(f"it is {KEY}") if body["messages"][-1]["role"] == "tool" else tools(call("secrets"))


class Served:
    """A page over one finished turn."""

    def __init__(self, home: Path) -> None:
        store = store_for(home, "normal")

        def make(hint: str | None) -> Agent:
            model = ScriptedModel(repeat(script))
            return Agent(model, tools=[secrets], clock=FakeClock(), home=home, store=store)

        self.turn = make(None).run_conversation("tell me").turn_id
        self.serve(DebugSession(store, make), first=self.turn, hide=[OWN])

    def serve(self, workshop: DebugSession, **options: Any) -> None:
        self.workshop, self.server = workshop, DebugServer(workshop, **options)
        self.server.start()
        self.base = self.server.address
        self.own = self.base.rstrip("/")
        self.client = httpx.Client()

    def ask(self, path: str, method: str = "GET", **options: Any) -> httpx.Response:
        """As the page: with the token, and the origin where something changes."""
        headers = {"x-fsm-agent-token": self.server.token, **options.pop("headers", {})}
        if method == "POST":
            headers = {"origin": self.own, "content-type": "application/json", **headers}
        headers = {name: value for name, value in headers.items() if value is not None}
        return self.client.request(method, self.base + path.lstrip("/"), headers=headers, **options)

    def close(self) -> None:
        self.client.close()
        self.server.stop()
        self.workshop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("page") / "home")
    yield made
    made.close()


# Who may talk to it


def test_it_listens_on_this_machine_only(served: Served) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", served.server.port))  # would be taken if it listened on every address
    taken, refused = (
        socket.create_server(("127.0.0.1", 0)),
        pytest.raises(ConfigError, match="port cannot be used"),
    )
    with taken, refused:
        DebugServer(served.workshop, taken.getsockname()[1])


def test_nothing_of_a_turn_is_given_without_the_token(served: Served) -> None:
    wrong = (
        "", "x" * 32, served.server.token[:-1], f"{served.server.token}x", served.server.token.swapcase(),
        "\xe9".encode("latin-1"),
    )  # fmt: skip
    of_a_turn = f"api/turns/{served.turn}/events"
    for path in ("api/hello", "api/turns", of_a_turn, "nowhere", "static", "//static/app.js"):
        assert served.client.get(served.base + path).status_code == 403
        for token in wrong:
            asked = served.client.get(served.base + path, headers={"x-fsm-agent-token": token})
            assert asked.status_code == 403
        assert served.client.get(f"{served.base}{path}?token={served.server.token}").status_code == 403


def test_the_token_is_in_no_cookie_and_not_in_what_a_browser_sends(served: Served) -> None:
    address, _, secret = served.server.url.partition("#")
    assert (address, secret) == (f"{served.base}?turn={served.turn}", f"token={served.server.token}")
    answer = served.client.get(served.server.url)
    assert answer.is_success
    assert "set-cookie" not in answer.headers
    assert served.server.token not in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example"]
)
def test_dns_rebinding_is_refused(served: Served, host: str) -> None:
    """A foreign name that was made to resolve to 127.0.0.1 shows in ``Host``."""
    headers, fork = {"host": host}, f"api/turns/{served.turn}/fork"
    assert served.ask("api/hello", headers=headers).status_code == 421
    assert served.ask(fork, "POST", headers=headers, content="{}").status_code == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1", ""]
)
def test_other_sites_cannot_post(served: Served, origin: str) -> None:
    """Even with the token."""
    fork, headers = f"api/turns/{served.turn}/fork", {"origin": origin}
    before = served.workshop.recent()
    answer = served.ask(fork, "POST", headers=headers, content=b'{"at": 1}')
    assert answer.status_code == 403
    assert [one.id for one in served.workshop.recent()] == [one.id for one in before]


def test_other_sites_cannot_read(served: Served) -> None:
    # and a form cannot post, even from our own page
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert served.ask("api/turns", "POST", headers=form, content=b"text=hello").status_code == 415
    for site in ("cross-site", "same-site"):
        assert served.ask("api/turns", headers={"sec-fetch-site": site}).status_code == 403
    assert served.ask("api/turns", headers={"sec-fetch-site": "same-origin"}).is_success


def test_a_program_may_use_the_token_in_a_header(served: Served) -> None:
    where = f"api/turns/{served.turn}/breakpoints"
    answer = served.ask(where, "POST", headers={"origin": None}, json={"all": []})
    assert answer.json() == {"breakpoints": []}


@pytest.mark.parametrize(
    "path",
    ["static/../app.py", "static/%2e%2e/app.py", "static/..%2fapp.py", "static//etc/passwd", "static/%2fetc/passwd",
     "static/vendor",
     "static/", "static/vendor/VENDORED.md", "static/....//serve.py"],
)  # fmt: skip
def test_only_the_files_of_the_page_can_be_had(served: Served, path: str) -> None:
    """Sent as it is: a client would tidy the path up."""
    server = served.server
    token = f"x-fsm-agent-token: {server.token}"
    head = f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{token}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.server.port), timeout=PATIENCE) as connection:
        connection.sendall(head.encode())
        said = b""
        while piece := connection.recv(65536):
            said += piece
    assert said.split(b" ", 2)[1] == b"404"
    assert b"import" not in said


def test_every_answer_forbids_foreign_code(served: Served) -> None:
    answers = [served.ask(path) for path in ("", "api/turns", "static/app.js")]
    for answer in (*answers, served.client.get(served.base)):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"


# What it never says


def test_no_secret_is_on_the_page(served: Served) -> None:
    turn = f"api/turns/{served.turn}"
    paths = [turn, f"{turn}/moves", f"{turn}/export", f"{turn}/test", "api/turns", "api/hello"]
    paths += [f"{turn}/at/{at}{what}" for at in range(7) for what in ("", "/messages", "/wire")]
    seen = [served.ask(path) for path in paths]
    assert all(answer.is_success for answer in seen)
    said = "".join(answer.text for answer in seen)
    assert "the key is" in said
    for secret in (KEY, "plain-value-1234", OWN, served.server.token):
        assert secret not in said


def test_masking_by_name_and_by_shape() -> None:
    kept, list_of = {"password": "", "max_tokens": 5}, [{"secret": "x"}]
    value = {"api_key": "abc", "OPENAI_API_KEY": "abc", **kept, "list": list_of, "text": f"Bearer {KEY}"}
    masked = {"api_key": "***", "OPENAI_API_KEY": "***", "list": [{"secret": "***"}], "text": "Bearer ***"}
    assert mask_json(value) == {**kept, **masked}
    assert mask_json(["xyzzy-xyzzy"], ["xyzzy-xyzzy"]) == ["***"]


# What it answers


def test_moves_come_by_windows(served: Served) -> None:
    answer = served.ask(f"api/turns/{served.turn}/moves?first=2&last=4").json()
    assert [move["seq"] for move in answer["moves"]] == [2, 3, 4]
    wrong = served.ask(f"api/turns/{served.turn}/moves?first=x").json()["error"]
    assert wrong.startswith("first is not a number")
    at = served.ask(f"api/turns/{served.turn}/at/4").json()
    assert (at["move"]["row"], at["state"], at["messages"]) == ("ExecuteTools.done", "BuildMessages", 3)
    assert at["messagesBefore"] == 1
    assert "RunTool" in [one["kind"] for one in at["visit"]]
    assert served.ask(f"api/turns/{served.turn}/at/99").json()["error"].startswith("turn")


@pytest.mark.behaviour("FSM-10")
def test_a_fork_is_started_stepped_and_told(served: Served) -> None:
    edit, token = {"results": {"call_1_0": "nothing"}}, {"x-fsm-agent-token": served.server.token}
    made = served.ask(f"api/turns/{served.turn}/fork", "POST", json={"at": 3, "edit": edit}).json()["turn"]
    with httpx.stream("GET", f"{served.base}api/turns/{made}/events", headers=token) as stream:
        lines = stream.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["data"]["status"]["phase"] == "paused"
        served.ask(f"api/turns/{made}/orders/step", "POST", json={})
        data = (line.removeprefix("data: ") for line in lines if line.startswith("data: "))
        told = [json.loads(line) for line in islice(data, 3)]
    assert [one["kind"] for one in told] == ["running", "moved", "paused"]
    assert told[1]["data"]["row"] == "ExecuteTools.done"
    assert served.ask(f"api/compare?left={served.turn}&right={made}").json()["said"] == 4
    wrong = served.ask(f"api/turns/{made}/orders/jump", "POST", json={}).json()["error"]
    assert wrong.startswith("no such order")


def test_invalid_json_is_refused(served: Served) -> None:
    assert served.ask("api/turns", "POST", content=b"{").status_code == 400
    assert served.ask("api/turns", "POST", content=b"[]").status_code == 400
    assert "error" in served.ask("api/turns", "POST", json={"text": 5}).json()


def test_every_script_and_style_is_our_own(served: Served) -> None:
    """Served files name no other site, except as the name of a format or a license."""
    allowed = re.compile(r"http://www\.w3\.org/\d{4}/|http://127\.0\.0\.1")
    for name, asset in assets().items():
        addresses = re.findall(r"https?://[^\"'\s)]+", asset.body.decode())
        assert [one for one in addresses if not allowed.match(one)] == [], name
    vendored = {name.removeprefix("vendor/") for name in assets() if name.startswith("vendor/")}
    assert vendored == {"preact.mjs", "preact-hooks.mjs", "htm.mjs"}


def test_the_map_has_every_state_and_every_row() -> None:
    svg = map_of(TURN)
    assert "<style" not in svg
    assert set(re.findall(r'id="state-(\w+)"', svg)) == set(TURN.states)
    rows = {
        row for found in re.findall(r'<g id="arrow[^>]*data-rows="([^"]*)"', svg) for row in found.split()
    }
    assert rows == {row.id for row in TURN.rows}
    assert bare("<svg><style>a</style><g/></svg>") == "<svg><g/></svg>"


def test_children_stand_below_the_turn_that_began_them(tmp_path: Path) -> None:
    store = store_for(tmp_path / "home", "normal")
    helper = Agent(ScriptedModel([text("meow")]), name="cats", toolsets=[], home=tmp_path / "other")
    script = [tools(call("cats", {"task": "ask"})), text("done"), text("again")]
    options = {"tools": [helper.as_tool()], "home": store.home, "store": store}
    boss = Agent(ScriptedModel(script), name="boss", toolsets=[], **options)
    boss.chat("one")
    boss.chat("two")
    workshop = DebugSession(store)
    shown = [(one["asked"], one["agent"], one["depth"]) for one in workshop.tree()]
    assert shown == [("two", "boss", 0), ("one", "boss", 0), ("ask", "cats", 1)]
    workshop.close()


# What suspended turns wait for


def test_what_waits_is_shown_whole_and_answered_once(agent: MakeAgent, store: Store) -> None:
    @tool(approval="ask")
    def spend(note: str) -> str:
        """Spend."""
        return "spent"

    def make(hint: str | None) -> Agent:
        script = tools(call("spend", {"note": f"with {KEY}"}))
        return agent(script, tools=[spend], store=store, settings={"approval": {"unanswered": "suspend"}})

    with pytest.raises(TurnSuspended):
        make(None).chat("go")
    made = Served.__new__(Served)
    made.serve(DebugSession(store, make))
    try:
        [item] = made.ask("api/pending").json()["pending"]
        assert (item["kind"], item["choices"][0]) == ("approval", "once")
        assert KEY in item["asked"], "what is approved runs as it is, so it is shown as it is"
        where = f"api/pending/{item['id']}"
        assert made.ask(where, "POST", json={"said": 1}).status_code == 400
        assert "cannot be answered so" in made.ask(where, "POST", json={"said": "maybe"}).json()["error"]
        assert made.ask(where, "POST", json={"said": "once"}).json() == {"told": "yes (once)"}
        assert "was answered already" in made.ask(where, "POST", json={"said": "deny"}).json()["error"]
        assert made.ask("api/pending").json() == {"pending": []}
    finally:
        made.close()


def test_what_recent_turns_took_is_told_by_day_and_by_row(served: Served) -> None:
    found = served.ask("api/insights?days=1").json()
    assert found["days"] == [asdict(one) for one in insights(served.workshop.store, 1).days]
    rows = {one["row"]: one["requests"] for one in found["rows"]}
    assert rows["CallLLM.tools"] == rows["CallLLM.text"] > 0
    assert found["improbable"] == [], "they are too few to tell"
    assert "Requests count if their provider reported" in served.ask("static/insights.js").text
    assert "days is not a number" in served.ask("api/insights?days=x").json()["error"]


@pytest.mark.parametrize("table", [TURN, order.TABLE, review_loop.TABLE], ids=lambda table: table.name)
def test_the_map_of_a_page_counts_as_many_exits_as_that_of_a_readme(table: Table) -> None:
    small, _ = readme_map_of(table)
    page = dict(
        re.findall(
            r'id="arrow-(\w+-\w+)".*?class="label"[^>]*>(?:<tspan[^>]*>)?([^<]*)', map_of(table), re.DOTALL
        )
    )
    counted = 0
    for arrow in small.arrows:
        for label in arrow.labels:
            if re.fullmatch(r"⇥ \d+ exits", label):
                assert page[f"{arrow.source}-{arrow.dest}"] == label.removeprefix("⇥ ")
                counted += 1
    assert counted or table is not TURN
