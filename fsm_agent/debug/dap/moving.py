"""Requests that move a turn, or the place that is looked at.

Where the newest position is looked at, they are orders to the engine. Further back they only look: what is recorded is gone
through again, and nothing runs. Going on from there is a fork, by *restart frame* or by changing a value.
"""

from __future__ import annotations

from typing import Any

from fsm_agent.debug.core.arguments import Arguments, text
from fsm_agent.debug.dap.context import Desk, looked
from fsm_agent.debug.dap.edits import edit_of
from fsm_agent.debug.dap.frames import frame_of
from fsm_agent.debug.dap.threads import Lane, stop_of
from fsm_agent.errors import ConfigError

LIVE = ("running", "paused", "waiting")
"""Phases of an engine that can be ordered to do something."""


def continue_(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    _go(desk, desk.lanes.get(arguments.get("threadId")), "continue")
    return {"allThreadsContinued": False}


def next_(desk: Desk, arguments: Arguments) -> None:
    """To the next time that the model is asked."""
    _go(desk, desk.lanes.get(arguments.get("threadId")), "over")


def step_in(desk: Desk, arguments: Arguments) -> None:
    """One request and its reply."""
    _go(desk, desk.lanes.get(arguments.get("threadId")), "into")


def step_out(desk: Desk, arguments: Arguments) -> None:
    """To the end of the state: the next move."""
    _go(desk, desk.lanes.get(arguments.get("threadId")), "step")


def step_back(desk: Desk, arguments: Arguments) -> None:
    """Look at the position before."""
    lane = _behind(desk, arguments)

    def back() -> None:
        lane.debugger.cursor.back()
        desk.stopped(lane, looked(lane, desk.points))

    desk.later(back)


def reverse_continue(desk: Desk, arguments: Arguments) -> None:
    """Look at the last position before this one at which a breakpoint stops, or at the start."""
    lane = _behind(desk, arguments)

    def back() -> None:
        _, hits = lane.debugger.cursor.back_to(lane.debugger.breakpoints)
        points = desk.points.of(hit.breakpoint.id for hit in hits)
        desk.stopped(lane, looked(lane, desk.points, tuple(point.id for point in points)))

    desk.later(back)


def pause(desk: Desk, arguments: Arguments) -> None:
    lane = desk.lanes.get(arguments.get("threadId"))
    if lane.stop is not None:
        return
    if lane.debugger.status.phase in ("waiting", "idle", "ended"):
        desk.later(lambda: desk.stopped(lane, stop_of(lane, desk.points)))
    else:
        lane.debugger.order("pause")


def restart_frame(desk: Desk, arguments: Arguments) -> None:
    """Go on from the position of a frame, as another turn."""
    number, at = frame_of(arguments.get("frameId"))
    desk.branch(desk.lanes.get(number), at, {}, "started again", again=True)


def set_variable(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Change a value at the position that is looked at: the turn that has it is another one, which is forked there."""
    place, value = desk.references.get(arguments.get("variablesReference"))
    name, said = text(arguments, "name"), text(arguments, "value")
    key: str | int = int(name[1:-1]) if not hasattr(value, "keys") and name[1:-1].isdecimal() else name
    lane = desk.lanes.get(place.lane)
    edit, new = edit_of(lane.debugger, place.to(key), said)
    desk.branch(lane, place.at, edit, f"{name} set to {said[:80]}")
    return desk.references.said(new, place.to(key), name=name)


def terminate(desk: Desk, arguments: Arguments) -> None:
    """Interrupt every turn, as its user would; the second time, end without waiting for them."""
    live = [lane for lane in desk.lanes if lane.debugger.status.phase in LIVE]
    if desk.ending or not live:
        desk.later(desk.terminated)
    desk.ending = True
    for lane in live:
        _interrupt(desk, lane)


def terminate_threads(desk: Desk, arguments: Arguments) -> None:
    """Interrupt these turns."""
    for number in arguments.get("threadIds") or []:
        lane = desk.lanes.get(number)
        if lane.debugger.status.phase in LIVE:
            _interrupt(desk, lane)
        else:
            desk.later(lambda lane=lane: desk.finish(lane))  # type: ignore[misc]  # bound at once


def _interrupt(desk: Desk, lane: Lane) -> None:
    desk.running(lane)
    lane.debugger.cursor.to(lane.debugger.record.count)
    lane.debugger.order("interrupt")


def _go(desk: Desk, lane: Lane, order: str) -> None:
    lane.stand()
    if lane.looking_back:
        desk.later(lambda: _forward(desk, lane, order))
        return
    status = lane.debugger.status
    if status.phase == "ended" and order == "continue":
        desk.later(lambda: desk.finish(lane))
        return
    if status.phase == "ended":
        raise ConfigError("the turn has ended; look back, or go on from another frame with restart frame", order)
    if status.phase == "waiting":
        raise ConfigError(stop_of(lane, desk.points).description, order)
    before = lane.stop
    desk.running(lane)
    try:
        lane.debugger.order(order)
    except ConfigError:
        lane.stop = before
        raise


def _forward(desk: Desk, lane: Lane, order: str) -> None:
    """Through what is recorded."""
    look, hits = lane.debugger.cursor, tuple[int, ...]()
    match order:
        case "continue":
            found = look.forward_to(lane.debugger.breakpoints)
            if found is None:
                look.to(lane.debugger.record.count)
            else:
                hits = tuple(point.id for point in desk.points.of(hit.breakpoint.id for hit in found[1]))
        case "over":
            path, over = lane.debugger.record.path(), lane.debugger.subject.over
            there = range(look.at + 1, len(path))
            found_at = (at for at in there if (path[at] == over if over is not None else path[at] != path[look.at]))
            look.to(next(found_at, len(path) - 1))
        case _:
            look.forward()
    desk.stopped(lane, looked(lane, desk.points, hits))


def _behind(desk: Desk, arguments: Arguments) -> Lane:
    lane = desk.lanes.get(arguments.get("threadId"))
    lane.stand()
    if lane.at == 0:
        raise ConfigError("this is the start of the turn", lane.name, "forward")
    return lane
