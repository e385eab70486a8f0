"""The proofs: of the turn, on seeded faults, on mutants against brute force, on a table of another kind."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from fsm_agent.errors import TableError
from fsm_agent.fsm.table import ALWAYS, Counter, Guard, Rung, Table, end, go, left, lines_of, on
from fsm_agent.fsm.verify import Bound, bounds, examine, prove, search, verify_table
from fsm_agent.fsm.verify.formulas import cheapest_cover
from fsm_agent.fsm.verify.polynomial import Polynomial, Printer
from fsm_agent.fsm.verify.reach import limit_names, small_scopes
from fsm_agent_states.table import TURN
from tests.helpers.mutants import changed, mutant, with_rows, without
from tests.helpers.sample import at_least, sampled_seeds
from tests.helpers.tables import DEFAULTS, Assigned, courier

Bounds = dict[tuple[tuple[str, ...], bool], Bound]


def bound_of(table: Table, *states: str, caps: bool = False) -> Bound:
    proof = examine(table)
    watch = states if len(states) == 1 else ()
    found = bounds(proof.without_caps, proof.with_caps, watch)
    return next(bound for bound in found if (bound.states, bound.caps) == (states, caps))


@pytest.fixture(scope="module")
def found() -> Bounds:
    proof = examine(TURN)
    return {(bound.states, bound.caps): bound for bound in bounds(proof.without_caps, proof.with_caps)}


def test_the_ranking_is_the_one_on_the_table_page() -> None:
    """Without caps; `rekeys` ranks the parts and not the whole graph, because a reply gives them back."""
    opened = "BuildMessages', CallLLM', ClassifyError', Compress'"
    closed, local = (
        "BuildMessages, ClassifyError, Compress",
        "rebuilds, rekeys, compactions, overflows, repairs",
    )
    proof = examine(TURN)
    assert proof.faults == ()
    prove(TURN)
    lines = proof.without_caps.lines()
    assert lines[0].endswith("Compress'}: iterations, free_rounds, summary_calls, lost_requests, fallbacks")
    assert set(lines[1].removeprefix("2. ").split("; ")) == {
        f"in {{{opened}}}: {local}, continuations",
        f"in {{{closed}}}: {local}",
        "in {ExecuteTools}: invalid_tool_rounds",
    }
    last = lines[2].removeprefix("3. ").split("; ")
    ends = (
        ": retries",
        "Compress}: summarizers, modelless_compactions",
        "Compress'}: summarizers, modelless_compactions",
    )
    assert all(part.endswith(ends) for part in last)
    assert len(lines) == 3


REQUESTS = (
    "lost_requests + repairs + blocks·(1 + cut_calls + overflows + rebuilds + rekeys + most_retries·(1 + rebuilds))"
    " + fallbacks·(1 + most_retries + overflows + rekeys + repairs)"
)


def test_the_bounds_are_the_formulas_of_the_table_page(found: Bounds) -> None:
    requests, compressions = found[("CallLLM",), False], found[("Compress",), False]
    assert requests.text == REQUESTS
    assert requests.legend == [
        "blocks = iterations + free_rounds + summary_calls",
        "most_retries = max(patience, retries)",
    ]
    assert requests.value(DEFAULTS) == 2786
    assert compressions.text == (
        "lost_requests + modelless_compactions + summarizers"
        " + (compactions + overflows)·(1 + modelless_compactions + summarizers"
        " + (blocks + fallbacks)·(1 + modelless_compactions + summarizers))"
    )
    assert compressions.value(DEFAULTS) == 4453
    assert found[(), False].value(DEFAULTS) == 15504


def test_the_caps_are_a_belt(found: Bounds) -> None:
    capped = found[("CallLLM",), True]
    assert capped.text == f"min({REQUESTS}, attempts, blocks·sends)"
    assert capped.value(DEFAULTS) == 360
    assert capped.value({**DEFAULTS, "sends": 1}) == 182
    assert capped.value({**DEFAULTS, "attempts": 10**9, "sends": 10**9}) == 2786


def test_each_request_is_an_attempt_and_they_are_capped() -> None:
    """Those for summaries, too: what a turn can send at most is one number."""
    asks = [row for row in TURN.rows if row.dest == "CallLLM" or "summarizers" in row.spends]
    assert {row.id for row in TURN.rows if "attempts" in row.spends} == {row.id for row in asks} | {
        "Compress.lost/1"
    }
    report = verify_table(TURN, DEFAULTS, small=False)
    figure = next(figure for figure in report.figures if figure.quantity == "attempts spent")
    assert (figure.value, figure.caps) == (360, True)
    assert figure.formula.startswith("min(2·lost_requests + repairs + blocks·(1 + cut_calls")
    assert "compactions·summarizers" in figure.formula
    assert figure.formula.endswith(", attempts)")


def test_without_the_reset_of_rekeys_the_bound_is_the_drafted_one() -> None:
    """2,420 while nothing gives rekeys back; (blocks + fallbacks)·rekeys - rekeys = 366 more since a reply
    and a fallback do."""
    kept = [tuple(name for name in row.resets if name != "rekeys") for row in TURN.rows]
    rows = (dataclasses.replace(row, resets=resets) for row, resets in zip(TURN.rows, kept, strict=True))
    assert bound_of(with_rows(TURN, rows), "CallLLM").value(DEFAULTS) == 2420 == 2786 - (184 * 2 - 2)


CONFIGURED = sampled_seeds(range(1000, 1320), "configurations")
CAPPED = sampled_seeds(range(2000, 2120), "capped configurations")


@pytest.mark.parametrize(
    ("seeds", "caps", "most_pairs", "least"),
    [
        (range(24), False, 9_000, 12),
        (range(16), True, 4_000, 5),
        pytest.param(CONFIGURED, False, 40_000, at_least(200), marks=pytest.mark.slow),
        pytest.param(CAPPED, True, 100_000, at_least(80), marks=pytest.mark.slow),
    ],
)
def test_the_formulas_equal_exact_search(
    found: Bounds, seeds: range, caps: bool, most_pairs: int, least: int
) -> None:
    """On random configurations, at least ``least`` of which are small enough to be searched."""
    compared = 0
    for seed in seeds:
        chance = random.Random(seed)
        weights = (2, 1, 1) if most_pairs > 10_000 else (3, 2, 1)
        limits = {name: chance.choices((0, 1, 2), weights)[0] for name in limit_names(TURN)}
        limits |= {"iterations": chance.randint(1, 2)}
        if caps:
            limits |= {"attempts": chance.randint(1, 8), "sends": chance.randint(1, 4)}
        result = search(TURN, limits, caps=caps, most_pairs=most_pairs)
        if result is None:
            continue
        compared += 1
        for states in (("CallLLM",), ("Compress",), ()):
            exact, formula = result.most_visits(states or None), found[states, caps].value(limits)
            assert exact <= formula, f"{found[states, caps].name}: formula below exact search with {limits}"
            if states == ("CallLLM",):
                assert exact == formula, f"{found[states, caps].name}: formula not reached with {limits}"
    assert compared >= least


@pytest.mark.slow
def test_all_limits_one_as_on_the_table_page() -> None:
    """25 requests while nothing gives rekeys back; a reply and a fallback that do add
    (blocks + fallbacks)·rekeys - rekeys = 3."""
    result = search(TURN, dict.fromkeys(limit_names(TURN), 1))
    assert result is not None
    assert (result.ends, result.most_visits(["CallLLM"])) == (True, 28)
    run = result.worst_run(["CallLLM"])
    assert sum(row.dest == "CallLLM" for row in run) == 28
    assert run[0].id == "Prepare.ready"
    assert all(row.dest == after.source for row, after in itertools.pairwise(run))
    assert run[-1].dest == TURN.final


def test_no_bound_is_claimed_for_an_endless_search() -> None:
    limits = dict.fromkeys(limit_names(TURN), 0) | dict.fromkeys(("iterations", "retries", "patience"), 1)
    result = search(changed(TURN, "ClassifyError.overloaded/1", spends=()), limits)
    assert result is not None
    assert not result.ends
    with pytest.raises(ValueError, match="no longest run exists"):
        result.most_visits()


def unguarded(row_id: str) -> Table:
    return changed(TURN, row_id, guard=ALWAYS)


def reply_resets(counter: str) -> Table:
    return changed(TURN, "CallLLM.tools", resets=(*TURN.row("CallLLM.tools").resets, counter))


def open_rung_first() -> Table:
    lines = tuple(
        line if (line.source, line.event) != ("ClassifyError", "overloaded")
        else type(line)(line.source, line.event, (go("BuildMessages"), *line.ladder), line.resets, line.why)
        for line in TURN.lines
    )  # fmt: skip
    return Table(TURN.name, TURN.states, TURN.final, TURN.counters, lines, TURN.macros, TURN.reset_groups)


FAULTS = {
    # fault: (table, partition, ends, ends without caps, a word of the message)
    "retries without spending": (
        changed(TURN, "ClassifyError.overloaded/1", spends=()), "", False, False,
        "ClassifyError.overloaded/1: can repeat without end without spending a counter",
    ),
    "a rung loses its guard": (
        unguarded("ExecuteTools.bad_json/2"), "overlap", False, False,
        "ExecuteTools.bad_json/1, ExecuteTools.bad_json/2: overlap, both rows are open when reasks left",
    ),
    "a line loses its last rung": (
        without(TURN, "CallLLM.no_summary/2"), "hole", True, True,
        "CallLLM.no_summary: hole, no row is open when no summary calls left; add a last rung that needs nothing",
    ),
    "compressed also resets compactions": (
        changed(TURN, "Compress.compressed", resets=("nudges", "thinking_prefills", "empties", "compactions")), "", False, False,
        "can repeat without end",
    ),
    "a reply does not close the block": (
        changed(TURN, "CallLLM.tools", resets=tuple(c for c in TURN.row("CallLLM.tools").resets if c != "opened")),
        "", True, False, "can repeat without end once the caps are taken away",
    ),
    "a free round is not counted": (
        changed(TURN, "ExecuteTools.done_free/1", spends=("opened",)), "", True, False, "ExecuteTools.done_free/1",
    ),
    "an open rung before others": (
        open_rung_first(), "never", False, False,
        "ClassifyError.overloaded/2: row can never be true (never); remove the rung, or the rung before it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_caught_where_it_should_be(fault: str) -> None:
    table, partition, ends, ends_without_caps, message = FAULTS[fault]
    proof = examine(table)
    words = {word for word in ("overlap", "hole", "never") for fault in proof.partition if word in fault.what}
    assert words == ({partition} if partition else set()), "partition"
    assert proof.with_caps.ends is ends, "ends"
    assert proof.without_caps.ends is ends_without_caps, "ends without caps"
    with pytest.raises(TableError) as raised:
        prove(table)
    assert message in str(raised.value)


@pytest.mark.slow
def test_a_fault_that_only_the_formula_sees() -> None:
    """A reply that also gives repairs back still ends; only the bound grows, by (blocks - 1 - fallbacks) ·
    repairs or more. The draft's example of this kind (rekeys) has become the design."""
    table = reply_resets("repairs")
    assert examine(table).faults == ()
    before, after = bound_of(TURN, "CallLLM"), bound_of(table, "CallLLM")
    blocks = "1 + cut_calls + overflows + rebuilds + rekeys + repairs + most_retries·(1 + rebuilds)"
    fallbacks = "1 + most_retries + overflows + rekeys + repairs"
    assert after.text == f"lost_requests + blocks·({blocks}) + fallbacks·({fallbacks})"
    grown = after.value(DEFAULTS) - before.value(DEFAULTS)
    assert grown == (90 + 90 + 2) * 10 - 10, "blocks·repairs - repairs"


@pytest.mark.parametrize(
    ("row", "made", "told"),
    [
        ("EmptyRecovery.nothing/1", {"guard": ALWAYS},
         'row spends empties without testing it .* left("empties")'),
        ("BuildMessages.built/2", {"spends": ("opened", "sends", "attempts")},
         "row spends opened without testing it"),
        ("ClassifyError.server_error/1", {"resets": ("retries",)}, "row resets and spends retries"),
    ],
)  # fmt: skip
def test_a_row_that_spends_what_it_may_not_is_named(row: str, made: dict[str, Any], told: str) -> None:
    with pytest.raises(TableError, match=f"{row}: {told}".replace("(", r"\(").replace(")", r"\)")):
        prove(changed(TURN, row, **made))


def test_a_verdict_is_remembered_by_digest_and_never_across_tables() -> None:
    prove(TURN)
    with pytest.raises(TableError):
        prove(FAULTS["retries without spending"][0])


def assignments(guards: list[Guard]) -> Iterator[Assigned]:
    """Counts 0 and 1 for every counter; for the counters with two limits also 2, with both orders of the
    limits."""
    limits_of: dict[str, set[str]] = {}
    for guard in guards:
        for atom in guard.atoms():
            limits_of.setdefault(atom.counter, set()).add(atom.limit)
    choices = []
    for counter, names in limits_of.items():
        orders = itertools.permutations(range(1, len(names) + 1))
        values = [dict(zip(sorted(names), order, strict=True)) for order in orders]
        choices.append([(counter, count, limits) for limits in values for count in range(len(names) + 1)])
    for chosen in itertools.product(*choices):
        limits = {name: value for _, _, own in chosen for name, value in own.items()}
        yield Assigned({counter: count for counter, count, _ in chosen}, limits)


def brute_partition(table: Table) -> bool:
    """Exactly one row of every line that differs from the turn's is open under every assignment."""
    for key, rows in table.by_event.items():
        if rows != TURN.by_event[key]:
            guards = [row.guard for row in rows]
            if any(sum(guard.holds(turn) for guard in guards) != 1 for turn in assignments(guards)):
                return False
    return True


def check_mutants(seeds: range) -> dict[str, int]:
    """No wrong "ends", and the partition verdict equals brute force; counts of the verdicts."""
    seen = {"ends": 0, "loops": 0, "cautious": 0, "holes or overlaps": 0}
    for seed in seeds:
        table = mutant(TURN, seed)
        proof = examine(table)
        wrong = any("never" not in fault.what for fault in proof.partition)
        assert wrong is not brute_partition(table), f"seed {seed}: partition"
        seen["holes or overlaps"] += wrong
        looped = False
        for caps, ranking in ((True, proof.with_caps), (False, proof.without_caps)):
            result = search(table, small_limits(seed, caps), caps=caps, most_pairs=2000)
            if result is not None and not result.ends:
                looped = True
                assert not ranking.ends, f"seed {seed}: said to end, caps {caps}, and loops"
        verdict = "ends" if proof.without_caps.ends else "loops" if looped else "cautious"
        seen[verdict] += 1
    return seen


def small_limits(seed: int, caps: bool) -> dict[str, int]:
    """Few budgets, so that 2,000 pairs are nearly always enough, but each of them at times."""
    chance = random.Random(f"{seed} {caps}")
    limits = {name: chance.choices((0, 1), (2, 1))[0] for name in limit_names(TURN)}
    return limits | {"iterations": 1, "attempts": 3, "sends": 3}


MUTANTS = sampled_seeds(range(10_000, 11_000), "mutants")


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "least"), [(range(30), 5), (MUTANTS, 5)])
def test_no_mutant_is_wrongly_proved_to_end(seeds: range, least: int) -> None:
    seen = check_mutants(seeds)
    assert min(seen["ends"], seen["loops"], seen["holes or overlaps"]) >= least, seen


def check_mutant_bounds(seeds: range) -> tuple[int, int]:
    """No bound of a mutant that ends is below exact search; (compared, equal)."""
    compared = equal = 0
    for seed in seeds:
        table = mutant(TURN, seed)
        proof = examine(table)
        if proof.faults:
            continue
        limits = small_limits(seed, False)
        results = {caps: search(table, limits, caps=caps, most_pairs=4000) for caps in (True, False)}
        for bound in bounds(proof.without_caps, proof.with_caps):
            result = results[bound.caps]
            if result is not None:
                exact = bound.exact(result)
                assert exact <= bound.value(limits), f"seed {seed}: {bound.name} is {exact} of {bound.text}"
                compared, equal = compared + 1, equal + (exact == bound.value(limits))
    return compared, equal


BOUNDED = sampled_seeds(range(20_000, 20_400), "bounds of mutants")


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "least"), [(range(20), 10), (BOUNDED, at_least(300))])
def test_no_bound_of_a_mutant_is_below_exact_search(seeds: range, least: int) -> None:
    compared, equal = check_mutant_bounds(seeds)
    assert compared >= least
    assert equal >= compared // 3


def test_any_table_can_be_verified() -> None:
    limits = {"tries": 3, "rings": 2, "repacks": 1}
    report = verify_table(courier(), limits)
    assert report.ok
    assert report.ranking_with_caps == ("1. in {Pack, Drive, Ring}: tries, rings, repacks",)
    exact = search(courier(), limits)
    assert exact is not None
    values = {figure.quantity: (figure.value, figure.exact, figure.kind) for figure in report.figures}
    assert values["visits of Drive"] == (5, 5, "exact")
    assert values["visits of Pack"] == (2, 2, "exact")
    assert values["moves"] == (13, 13, "exact") == (exact.most_visits(), 13, "exact")
    assert not any(figure.caps for figure in report.figures)


def test_structural_faults_of_any_table_are_named() -> None:
    lines = lines_of({"A": [on("x", go("A"), why="")], "C": [on("x", end("e", "E"), why="")]})
    with pytest.raises(TableError) as raised:
        prove(Table("odd", ("A", "B", "C", "E"), "E", (), lines))
    for message in (
        "odd: B: state is stuck, it has no line",
        "odd: C: state is unreachable from A",
        "odd: A: no path leads to E",
        "odd: A.x: can repeat without end without spending a counter; let one of these rows spend a counter",
    ):
        assert message in str(raised.value)


def test_a_guard_outside_the_language_is_refused() -> None:
    class Moon(Guard):
        __slots__ = ()
        label = "the moon is full"

        def holds(self, turn: object) -> bool:
            return True

        def atoms(self) -> Iterator[object]:
            return iter(())

        def __invert__(self) -> Guard:
            return Moon()

    lines = lines_of({"A": [on("x", Rung("r", "A", Moon()), end("e", "E"), why="")]})
    with pytest.raises(TableError, match=r"odd: A\.x: rung 'r': a guard of type Moon cannot be proved"):
        Table("odd", ("A", "E"), "E", (), lines)


def test_the_report_is_json_and_that_of_a_wrong_table_has_no_bounds() -> None:
    report = verify_table(courier(), dict.fromkeys(limit_names(courier()), 1), small=False)
    data = json.loads(json.dumps(report.to_dict()))
    assert report.ok
    assert data["ok"] is True
    assert {check["ok"] for check in data["checks"]} == {True}
    report = verify_table(FAULTS["retries without spending"][0], DEFAULTS)
    assert not report.ok
    assert report.figures == ()
    assert "FAIL  every turn ends" in report.render()
    assert report.render().endswith("FAILED")


def test_a_dead_row_is_found() -> None:
    """A row whose guard can be true but that no run reaches: a second counter is spent only together with the
    first."""
    both = Rung("both", "A", left("a"), ("a",))
    odd = Rung("odd", "A", left("b"), ("b",))
    lines = lines_of({
        "A": [on("x", both, end("e", "E"), why=""), on("y", Rung("one", "B", ~left("b"), ()), odd, why="")],
        "B": [on("x", end("e", "E"), why=""), on("y", Rung("never", "A", left("b"), ("b",)), end("f", "E"), why="")],
    })  # fmt: skip
    table = Table("dead", ("A", "B", "E"), "E", (Counter("a"), Counter("b")), lines)
    prove(table)
    report = verify_table(table)
    assert [check.findings for check in report.checks if check.name == "no row is dead"] == [
        ("B.y/1: no run takes it in any of the scopes; remove the rung",)
    ]


def test_polynomials_print_with_their_factors() -> None:
    a, b, c = (Polynomial.largest([name]) for name in "abc")
    two = Polynomial.constant(2)
    assert str(a * b + a * c + a) == "a·(1 + b + c)"
    assert str(two * a * b + two * a) == "2·a·(1 + b)"
    assert str(Polynomial()) == "0"
    assert Printer(sums={"n": (("a",), ("b",))}).text((a + b) * c + a) == "a + c·n"
    assert (a * b + two).value({"a": 3, "b": 4}) == 14
    assert Polynomial.largest(["a", "b"]).value({"a": 3, "b": 4}) == 4


def test_a_cover_is_a_cheapest_one() -> None:
    assert cheapest_cover(0b111, [(0b011, 3), (0b110, 3), (0b001, 1), (0b111, 5)]) == (1, 2)
    assert cheapest_cover(0b100, [(0b011, 3)]) is None
    assert cheapest_cover(0, []) == ()


@pytest.mark.slow
def test_a_row_behind_large_scopes_is_not_called_dead() -> None:
    """Every scope of this table has more pairs than are searched exactly; a search for the row itself finds
    it."""
    names = [f"n{number}" for number in range(30)]
    lines = [on(name, Rung(name, "A", left(name), (name,)), end("e", "E"), why="") for name in names]
    lines += [on("x", end("both", "E", when=~left("n0") & ~left("n1")), end("one", "E"), why="")]
    wide = Table("wide", ("A", "E"), "E", tuple(map(Counter, names)), lines_of({"A": lines}))
    assert small_scopes(wide) == ((), wide.rows)
    report = verify_table(wide)
    assert [check.findings for check in report.checks if check.name == "no row is dead"] == [()]
