"""Each setting can be set alone, in every way there is; what is refused is refused for the reason given."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from fsm_agent import Agent
from fsm_agent.cli.arguments import nest_settings
from fsm_agent.errors import ConfigError
from fsm_agent.providers.choose import choose, connect
from fsm_agent.providers.config_file import config_of
from fsm_agent.settings import Settings, Stale
from fsm_agent.settings.errors import every_setting
from fsm_agent.testing import FakeClock
from tests.helpers.extreme_settings import (
    MODEL,
    ExtremeServer,
    Number,
    numbers,
    request_bound,
    tried_alone,
    tried_together,
)
from tests.helpers.sample import sampled, sampled_seeds

WORDS = "low child ask chat rotate normal shared steer random 1h warn docker free suspend native"
TRIED: tuple[Any, ...] = (
    7,
    0.5,
    20_000,
    True,
    ["one"],
    ["image"],
    {"terminal": "ask"},
    {"web_search": {"max_uses": 2}},
    {"a:b": {"input": 1, "output": 2, "cache_read": 1, "cache_write": 1}},
    [{"role": "user", "content": "hi"}],
    *WORDS.split(),
    "other words",
    "127.0.0.1:7233",
)
"""Values for settings whose default is not a number; each fits some of them."""


def leaves(group: BaseModel, *path: str) -> Iterator[tuple[str, Any]]:
    """The name and value of every setting in a group and in the groups of it."""
    for name in type(group).model_fields:
        value = getattr(group, name)
        if isinstance(value, BaseModel):
            yield from leaves(value, *path, name)
        else:
            yield ".".join((*path, name)), value


def under(name: str, value: Any) -> dict[str, Any]:
    """The mapping that sets one name and nothing else."""
    for part in reversed(name.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def accepted(name: str, value: Any) -> bool:
    """Can this setting have this value? True is not counted where it is taken for the number 1."""
    try:
        found = dict(leaves(Settings.of(under(name, value))))[name]
    except ConfigError:
        return False
    return isinstance(found, bool) == isinstance(value, bool)


def others_of(name: str, default: Any) -> list[Any]:
    """One or two values for a setting that are not its default, each of them accepted."""
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    tried = (default + 1, default * 2, default / 2, default * 0.99) if is_number else TRIED
    if isinstance(default, bool):
        tried = (not default,)
    found = (value for value in tried if value != default and accepted(name, value))
    return list(itertools.islice(found, 2))


ANY_TABLE, SECRET_TABLE = ("request.extra_body", "extensions"), "request.extra_headers"
SHOWN_NOWHERE = "store.database_url"
DEFAULTS = dict(leaves(Settings.model_construct()))


def check(settings: Settings, name: str, value: Any) -> None:
    """This setting has the value, and every other one its default."""
    found = dict(leaves(settings))
    own = to_jsonable_python(found[name])
    if name == SECRET_TABLE:
        own = {key: text.get_secret_value() for key, text in found[name].items()}
    assert own == value, name
    assert {other: found[other] for other in found if other != name} == {
        other: DEFAULTS[other] for other in DEFAULTS if other != name
    }


def test_the_walk_finds_every_setting() -> None:
    assert list(DEFAULTS) == list(every_setting())
    assert {"backoff.invalid.base", "stale.whole.above_100k", "web.only_hosts"} <= set(DEFAULTS)


@pytest.mark.behaviour("FSM-15", "COMP-02b")
@pytest.mark.parametrize("name", [name for name in DEFAULTS if name != SHOWN_NOWHERE])
def test_each_setting_can_be_set_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = others_of(name, DEFAULTS[name])
    assert values, f"no other value of {name} is accepted by itself"
    for value in values:
        check(Settings.of(under(name, value)), name, value)
    check(Settings(**under(name, value)), name, value)
    check(Settings.of(nest_settings([f"{name}={json.dumps(value)}"])), name, value)
    (tmp_path / "config.toml").write_text(tomlkit.dumps({"settings": under(name, value)}))
    check(Settings.of(None, config_of(tmp_path).settings), name, value)
    text = value if isinstance(value, str) else json.dumps(value)
    monkeypatch.setenv(f"FSM_AGENT_{name.upper().replace('.', '__')}", text)
    check(Settings(), name, value)
    check(Settings.of(), name, value)


def test_the_address_of_a_database_is_read_from_each_place_and_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "postgresql://me:hidden@127.0.0.1/agents"
    (tmp_path / "config.toml").write_text(tomlkit.dumps({"settings": under(SHOWN_NOWHERE, address)}))
    found = [Settings.of(under(SHOWN_NOWHERE, address)), Settings.of(None, config_of(tmp_path).settings)]
    monkeypatch.setenv("FSM_AGENT_STORE__DATABASE_URL", address)
    for settings in (*found, Settings.of()):
        assert settings.store.database == address
        assert "hidden" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()


@pytest.mark.behaviour("FSM-12", "BACK-04d")
@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_refused_is_named_and_told_what_is_allowed(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Settings.of(under(name, "words" if name in ANY_TABLE else {"no": {"such": "value"}}))
    named = (f"setting {name} is out of range; given: ", f"setting {name}.no is out of range; given: ")
    assert str(raised.value).startswith(named)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"backoff": {"exception": {"cap": 1}}},
         "settings backoff.exception.cap and backoff.exception.base contradict each other; "
         "given: cap 1, base 2; allowed: a cap that is not below the base"),
        ({"backoff": {"invalid": {"base": 121}}},
         "settings backoff.invalid.cap and backoff.invalid.base contradict each other; "
         "given: cap 120, base 121; allowed: a cap that is not below the base"),
        ({"backoff": {"exception": "quick"}},
         "setting backoff.exception is out of range; given: quick; allowed: a table of base, cap"),
        ({"stale": {"stream": True}},
         "setting stale.stream is out of range; given: True; "
         "allowed: a number, or a table of base, above_50k, above_100k"),
        ({"stale": {"stream": {"above_70k": 3}}},
         "unknown setting stale.stream.above_70k; given: 3; "
         "allowed: stale.stream.above_50k, perhaps; fsm-agent config list has all"),
        ({"prompt": {"enforce_tool_use": 3.5}},
         "setting prompt.enforce_tool_use is out of range; given: 3.5; "
         "allowed: auto or true, false or list of texts"),
        ({"poll": {"heartbeat": 0.0001}},
         "setting poll.heartbeat is out of range; given: 0.0001; allowed: number 0.1 to 3,600"),
        ({"delegation": {"heartbeat": 0.0001}},
         "setting delegation.heartbeat is out of range; given: 0.0001; allowed: number 0.1 to 3,600"),
        ({"poll": {"control": 0.0001}},
         "setting poll.control is out of range; given: 0.0001; allowed: number 0.001 to 60"),
        ({"store": {"database_url": "mysql://me:hidden@host/x"}},
         "setting store.database_url is out of range; given: an address that begins with mysql://; "
         "allowed: an address that begins with postgresql://"),
        ({"store": {"database_url": "me:hidden@host/x"}},
         "setting store.database_url is out of range; given: a text that is not an address; "
         "allowed: an address that begins with postgresql://"),
        ({"timeout": {"connect": 0}},
         "setting timeout.connect is out of range; given: 0; allowed: number above 0 to 86,400"),
        ({"max_iterations": True},
         "setting max_iterations is out of range; given: True; allowed: whole number 0 to 100,000"),
        ({"limits.turn.usd": True},
         "setting limits.turn.usd is out of range; given: True; allowed: number above 0 to 1,000,000 or nothing"),
        ({"prompt.ephemeral": None},
         "setting prompt.ephemeral is out of range; given: nothing; allowed: text"),
        ({"limits.turn.usd": 0},
         "setting limits.turn.usd is out of range; given: 0; allowed: number above 0 to 1,000,000 or nothing"),
        ({"limits.turn.eur": 1},
         "unknown setting limits.turn.eur; given: 1; allowed: usd, tokens, seconds"),
    ],
)  # fmt: skip
def test_an_error_is_true(given: Mapping[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Settings.of(given)
    assert str(raised.value) == says


def test_names_with_dots_are_taken_as_the_command_line_takes_them(tmp_path: Path) -> None:
    given = {"limits.turn.usd": 1, "limits": {"turn": {"tokens": 5}}}
    given |= {"limits.turn.seconds": 9, "max_iterations": 3}
    for settings in (Settings.of(given), Settings(**given), Agent("offline:demo", settings=given).settings):
        assert settings.limits.turn.model_dump() == {"usd": 1, "tokens": 5, "seconds": 9}
        assert settings.max_iterations == 3
    below = {"stale.stream": 20}
    assert Settings.of({"stale.stream.above_50k": 30}, below).stale.stream.each == (20, 30, 20)


def test_a_number_for_all_sizes_gives_way_to_one_of_them_above(monkeypatch: pytest.MonkeyPatch) -> None:
    one, above = {"stale": {"stream": 20}}, {"stale": {"stream": {"above_50k": 30}}}
    assert Settings.of(one).stale.stream.each == (20, 20, 20)
    assert Settings.of(above, one).stale.stream.each == (20, 30, 20)
    monkeypatch.setenv("FSM_AGENT_STALE__STREAM", "40")
    assert Settings.of(above, one).stale.stream.each == (40, 30, 40)
    assert Settings.of(one).stale.stream.each == (20, 20, 20)


def test_a_limit_for_one_size_leaves_the_patience_with_a_local_server() -> None:
    def after(stale: Stale, tokens: int) -> float:
        return stale.after(tokens, streaming=True, local=True)

    stale = Settings.of({"stale": {"stream": {"above_50k": 500}}}).stale
    assert [after(stale, tokens) for tokens in (10, 60_000, 200_000)] == [900, 500, 900]
    again = Settings.of(Settings().model_dump(mode="json")).stale
    assert after(again, 10) == 900, "settings that were stored with a turn mean the same"


def test_a_port_is_more_patient_than_every_limit_on_silence() -> None:
    settings = Settings.of({"stale": {"stream": {"base": 2_000}}})
    port: Any = connect(choose("local:m", "http://127.0.0.1:9/v1"), settings, FakeClock())
    assert asyncio.run(port.ready()).timeout.read == 2_000


PROMISED = {
    "max_iterations": 90, "api_max_retries": 3, "delegation.max_iterations": 50,
    "delegation.tree_cap_factor": 3, "delegation.max_children": 3, "delegation.max_depth": 1,
    "delegation.summary_max_chars": 24_000, "delegation.summary_min_chars": 2_000,
    "delegation.headroom_fraction": 0.5, "delegation.heartbeat": 30, "delegation.stale_idle": 450,
    "delegation.stale_in_tool": 1_200, "approval.timeout": 60, "memory.review_every": 10,
    "compression.preflight_passes": 3, "compression.max_per_streak": 3, "compression.protect_first": 3,
    "compression.soft_factor": 1.5, "compression.tail_floor": 8, "stale.stream.base": 180,
    "stale.whole.base": 90, "poll.control": 0.3,
}  # fmt: skip
"""Figures of docs/behaviours.md that other tests do not meet."""


@pytest.mark.behaviour("BUD-01", "BUD-01b", "DIS-01", "PREP-13b", "STR-01", "BACK-04", "COMP-04b")
@pytest.mark.behaviour("COMP-17", "COMP-18b", "COMP-18d", "APPR-01", "AGT-05", "AGT-06", "INT-07", "FIN-10")
def test_the_figures_that_are_promised() -> None:
    assert {name: DEFAULTS[name] for name in PROMISED} == PROMISED


WORST = {
    "a threshold that rounds to no tokens": {
        "compression": {"threshold": 5e-324, "tiny_window": 5e-324, "small_window_floor": 5e-324}
    },
    "no time for anything": {"timeout": {"total": 5e-324}, "hook_timeout": 0, "tool": {"batch_timeout": 0}},
    "all tokens there are": {"limits": {"day": {"tokens": 10**12}, "turn": {"tokens": 10**12}}},
}
"""Settings that turns have stumbled over, or might."""


def test_the_model_of_the_settings_names_every_number() -> None:
    named = {one.name for one in numbers() if "prices" not in one.path}
    assert named == {name for name, one in every_setting().items() if "number" in one.allowed}
    assert {f"prices.{MODEL}.{one}" for one in ("input", "output", "cache_read", "cache_write")} <= {
        one.name for one in numbers()
    }


@pytest.mark.behaviour("SET-01")
@pytest.mark.parametrize("number", numbers(), ids=lambda number: number.name)
def test_what_is_no_number_or_beyond_the_range_is_refused_in_a_line(number: Number) -> None:
    assert math.isfinite(number.least)
    assert math.isfinite(number.most)
    for value in (math.nan, math.inf, -math.inf, number.least - 1, number.most * 2 + 1, 10**400, -(10**400)):
        with pytest.raises(ConfigError, match=r"^setting .* is out of range; given: .*; allowed: ") as raised:
            Settings.of(number.given(value))
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 400


@pytest.mark.parametrize("name", WORST)
def test_a_turn_at_the_end_of_what_may_be_set_has_no_bug(name: str) -> None:
    with ExtremeServer() as server:
        assert server.faults_of(WORST[name], seed=3, turns=1) == []


@pytest.mark.slow
@pytest.mark.behaviour("SET-01")
@pytest.mark.parametrize("part", sampled(range(4), "numbers alone"))
def test_each_number_alone_at_its_extremes(part: int) -> None:
    with ExtremeServer() as server:
        for seed, (name, given) in enumerate(islice(tried_alone(), part, None, 4)):
            assert server.faults_of(given, seed, turns=1, bound=request_bound()) == [], name


@pytest.mark.slow
@pytest.mark.behaviour("SET-01")
def test_numbers_together_at_their_extremes() -> None:
    with ExtremeServer() as server:
        for seed in sampled_seeds(range(150), "numbers together"):
            given = tried_together(seed)
            assert server.faults_of(given, seed, bound=request_bound()) == [], (seed, given)
