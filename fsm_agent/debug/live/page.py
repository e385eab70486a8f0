"""The page of a watched table: its contents as JSON, and the changes that it may request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fsm_agent.debug.core.breakpoints import MalformedArgument, number, text
from fsm_agent.debug.live.patch import AddRung, Edit, MoveRung, SetLimit
from fsm_agent.debug.live.watched import Shown, View, Watched
from fsm_agent.debug.web.page import Body, Page, pictures_of
from fsm_agent.diagram.model import is_move, words
from fsm_agent.diagram.versions.compare import BoundChange, ProofChange, RowChange
from fsm_agent.diagram.versions.rendering import SIGN, change_words, summary
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.table import Line, Rung
from fsm_agent.fsm.verify.report import Report

ALIVE = 1.0
"""Seconds without news after which a stream sends a keep-alive."""


class LivePage(Page):
    """HTTP handlers of the page, one per request."""

    document = "live.html"

    def __init__(self, watched: Watched, secrets: Sequence[str] = ()) -> None:
        super().__init__(secrets)
        self._watched = watched

    def routes(self) -> list[Route]:
        """Return the handlers by route."""
        return [
            *super().routes(),
            Route("/api/live", self.reading(self.live), methods=["GET"]),
            Route("/api/live/events", self.events, methods=["GET"]),
            Route("/api/live/edit", self.changing(self.edit), methods=["POST"]),
            Route("/api/live/undo", self.changing(self.undo), methods=["POST"]),
        ]

    def live(self, request: Request) -> Any:
        """Return the current contents."""
        return view_form(self._watched, self._watched.view)

    async def events(self, request: Request) -> Response:
        """Stream the contents at each change, until the client disconnects."""
        return StreamingResponse(
            self._stream(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _stream(self) -> AsyncIterator[str]:
        view = self._watched.view
        while True:
            form = await asyncio.to_thread(view_form, self._watched, view)
            yield f"data: {dumps({'kind': 'live', 'data': form, 'sent': time.time()})}\n\n"
            seen = view.number
            while view.number == seen:
                view = await asyncio.to_thread(self._watched.wait, seen, ALIVE)
                if view.number == seen:
                    yield ": still here\n\n"

    def edit(self, request: Request, body: Body) -> Any:
        """Change a row in the file if the changed table is proved; otherwise return the reason."""
        refusal = self._watched.edit(_edit_of(body), text(body, "mark"))
        if refusal is None:
            return {"written": True}
        return {
            "written": False,
            "findings": list(refusal.findings),
            "runs": [run.to_dict() for run in refusal.runs],
        }

    def undo(self, request: Request, body: Body) -> Any:
        """Undo the last change."""
        self._watched.undo()
        return {"written": True}


def _edit_of(body: Body) -> Edit:
    match body.get("kind"):
        case "move":
            by = body.get("by")
            if by not in (-1, 1):
                raise MalformedArgument("a rung moves by one place", by, "-1, 1")
            return MoveRung(text(body, "state"), text(body, "event"), number(body, "rung"), int(by))
        case "add":
            guard = text(body, "guard") if body.get("guard") else ""
            return AddRung(
                text(body, "state"), text(body, "event"), number(body, "at"), text(body, "remedy"), guard
            )
        case "limit":
            return SetLimit(text(body, "limit"), number(body, "value"))
    raise MalformedArgument("there is no such change", body.get("kind"), "move, add, limit")


# ----------------------------------------------------------------------------------------------------
# The page's contents as JSON


def view_form(watched: Watched, view: View) -> dict[str, Any]:
    """Return a view as plain JSON values."""
    broken = view.broken
    return {
        "number": view.number,
        "file": watched.path.name,
        "busy": view.busy,
        "canUndo": watched.can_undo,
        "broken": None if broken is None else {"reason": broken.reason, "line": broken.line},
        "shown": None if view.shown is None else _shown_form(view.shown),
    }


def _shown_form(shown: Shown) -> dict[str, Any]:
    table, limits = shown.version.table, shown.version.limits or {}
    return {
        "mark": shown.mark,
        "name": table.name,
        "base": shown.base,
        "states": list(table.states),
        "final": table.final,
        "rows": {
            row.id: {"rung": row.rung, "guard": row.guard.label, "why": row.why, "exit": row.exit}
            for row in table.rows
        },
        **pictures_of(table),
        "lists": [_list_form(shown, line) for line in table.lines],
        "limits": [
            {
                "name": name,
                "value": value,
                "before": shown.base_limits.get(name),
                "written": name in shown.text.limits,
            }
            for name, value in limits.items()
        ],
        "remedies": [
            {"source": source, "words": _rung_words(rung)} for source, rung in shown.text.remedies.items()
        ],
        "guards": [{"source": source, "words": guard.label} for source, guard in shown.text.guards.items()],
        "changes": [_change_form(change) for change in shown.difference.rows],
        "names": [
            {
                "kind": one.kind,
                "name": one.name,
                "change": one.change,
                "before": one.before,
                "after": one.after,
            }
            for one in shown.difference.names
        ],
        "summary": summary(shown.difference, shown.proofs).replace("**", "") if shown.proofs else None,
        "proof": None if shown.report is None else _proof_form(shown.report, shown.proofs),
        "runs": [run.to_dict() for run in shown.runs],
        "predicted": None if shown.predicted is None else list(shown.predicted),
    }


def _list_form(shown: Shown, line: Line) -> dict[str, Any]:
    rows = shown.version.table.by_event[line.source, line.event]
    return {
        "state": line.source,
        "event": line.event,
        "why": line.why,
        "line": shown.text.line(line.source, line.event),
        "refusal": shown.text.refusal(line.source, line.event),
        "together": list(shown.text.together(line.source, line.event)),
        "rungs": [
            {"row": row.id, "words": _rung_words(rung)} for row, rung in zip(rows, line.ladder, strict=True)
        ],
    }


def _rung_words(rung: Rung) -> str:
    """Describe a rung: ``retry → BuildMessages if retries left``."""
    needs = "" if rung.needs.label == "always" else f" if {rung.needs.label}"
    if rung.exit is not None:
        return f"⇥ {words(rung.exit)}{needs}"
    return f"→ {rung.to}{needs}" if is_move(rung) else f"{rung.name} → {rung.to}{needs}"


def _change_form(change: RowChange) -> dict[str, Any]:
    row = change.row
    return {
        "change": change.change,
        "sign": SIGN[change.change],
        "row": row.id,
        "leads": f"⇥ {words(row.exit)}" if row.exit else f"→ {row.dest}",
        "rung": "" if row.rung.startswith(("⇥", "→")) else row.rung,
        "guard": row.guard.label,
        "what": change_words(change)
        or ("guard changed only because of the rungs before" if change.follows else ""),
    }


def _proof_form(report: Report, proofs: ProofChange | None) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "wasOk": None if proofs is None else proofs.old_ok,
        "checks": [
            {"name": one.name, "scope": one.scope, "ok": one.ok, "findings": list(one.findings)}
            for one in report.checks
        ],
        "properties": [
            {"says": one.says, "verdict": one.verdict, "known": one.known, "finding": one.finding}
            for one in report.properties
        ],
        "inner": [{"name": one.table, "ok": one.ok} for one in report.inner],
        "bounds": [_bound_form(one) for one in proofs.bounds] if proofs is not None else [],
    }


def _bound_form(one: BoundChange) -> dict[str, Any]:
    return {
        "quantity": one.quantity,
        "caps": one.caps,
        "before": one.old_value,
        "after": one.new_value,
        "formula": one.new or one.old,
        "by": one.by,
        "changed": one.changed,
        "legend": list(one.legend),
    }
