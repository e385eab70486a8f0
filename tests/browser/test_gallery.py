"""The page of a table that is one file: opened from the disk, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from fsm_agent.diagram.page import as_page
from fsm_agent.diagram.runs import Run, tally_of_runs
from fsm_agent_states.table import TURN
from tests.helpers.diagram_tables import SMALL, USUAL, steps

pytestmark = pytest.mark.slow
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror=window.broken=1>"
CHILD = Run(tuple(steps(TURN, ["ready", "built", "text"])), "c", "turn", HOSTILE, at=3)
RUN = Run(tuple(steps(TURN, USUAL)), "a", "turn", "find the file", children=(CHILD,))


@pytest.fixture(scope="module")
def opened(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Open the page; what its console says is in ``said``."""
    file = tmp_path_factory.mktemp("page") / "turn.html"
    file.write_text(as_page(TURN, runs=[RUN], tally=tally_of_runs(TURN, [RUN])), "utf-8")

    def open_page(width: int = 1280, **options: Any) -> Any:
        page = chromium.new_context(viewport={"width": width, "height": 900}, **options).new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: request.url == file.as_uri() or page.said.append(request.url))
        page.goto(file.as_uri())
        return page

    return open_page


def classes(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(f"#map {selector}").evaluate_all(
        "all => all.map((one) => one.dataset.state ?? `${one.dataset.source} ${one.dataset.dest}`)"
    )
    return found


def test_the_player_goes_through_a_run_and_those_below_it(opened: Callable[..., Any]) -> None:
    page = opened()
    assert classes(page, ".state.here") == ["Prepare"]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Next").click()
    assert classes(page, ".state.here") == ["ExecuteTools"]
    assert classes(page, ".arrow.taken") == ["CallLLM ExecuteTools"]
    assert "Move 3 of 9: CallLLM · tools → ExecuteTools" in page.locator("#move").inner_text()
    page.get_by_role("button", name="Into the turn that began here").click()
    assert classes(page, ".state.here") == ["Prepare"]
    page.keyboard.press("End")
    assert "⇥ text response" in page.locator("#move").inner_text()
    assert page.get_by_role("button", name="Next").is_disabled()
    page.get_by_role("button", name="Back to find the file").click()
    page.keyboard.press("ArrowLeft")
    assert "Move 2 of 9" in page.locator("#move").inner_text()
    page.locator("#place").fill("9")
    assert classes(page, ".state.here") == ["Finalize"]
    page.get_by_role("button", name="4. ExecuteTools").click()
    assert "Move 4 of 9" in page.locator("#move").inner_text()
    page.get_by_role("button", name="Play").click()
    page.get_by_text("Move 9 of 9").wait_for()
    assert page.evaluate("window.broken") is None
    assert page.said == []


def test_its_policy_is_strict_and_holds(opened: Callable[..., Any]) -> None:
    page = opened()
    policy = page.locator("meta[http-equiv]").get_attribute("content")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.broken = 1'}))"
    )
    with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=http://127.0.0.1:9/x>')")
    assert page.evaluate("window.broken") is None


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_it_fits_and_can_be_used_by_everybody(opened: Callable[..., Any], width: int, scheme: str) -> None:
    axe = (files("axe_core_python") / "axe.min.js").read_text("utf-8")
    page = opened(width, color_scheme=scheme)
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 300) == (scheme == "dark")
    for part in page.locator("details").all():
        part.evaluate("(one) => { one.open = true; }")
    page.evaluate(axe)
    found = page.evaluate("axe.run().then((found) => found.violations)")
    assert [(one["id"], [node["html"][:90] for node in one["nodes"][:3]]) for one in found] == []


def test_a_page_without_runs_has_no_script() -> None:
    page = as_page(SMALL)
    assert "<script" not in page
    assert "do; &lt;it&gt;" in page
