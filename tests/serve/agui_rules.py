"""The rules of AG-UI for the order of events, as the protocol's own verifier has them, and what a client shows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ag_ui.core import Event, EventType
from pydantic import TypeAdapter

OF_WIRE: TypeAdapter[Any] = TypeAdapter(Event)


def checked(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The events of one stream, each valid by the protocol's models, in an order that its clients accept."""
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    for one in events:
        OF_WIRE.validate_python(one)
        assert not {name for name, value in one.items() if value is None}, one
    check_order(events)
    return events


def check_order(events: list[dict[str, Any]]) -> None:
    """Fail at the first event that a client would refuse."""
    opened: dict[str, set[Any]] = {
        kind: set() for kind in ("TEXT_MESSAGE", "TOOL_CALL", "REASONING", "REASONING_MESSAGE")
    }
    steps: set[tuple[str | None, str]] = set()
    children: set[str] = set()
    gone: set[str] = set()
    assert events[0]["type"] in ("RUN_STARTED", "RUN_ERROR")
    for place, one in enumerate(events):
        kind = one["type"]
        assert (kind == "RUN_STARTED") == (place == 0 and events[0]["type"] == "RUN_STARTED"), kind
        over = kind in ("RUN_FINISHED", "RUN_ERROR")
        assert over == (place == len(events) - 1), (place, one)
        group, _, phase = kind.rpartition("_")
        if group in opened:
            name = one.get("toolCallId") if group == "TOOL_CALL" else one["messageId"]
            if phase == "START":
                assert name not in opened[group], one
                opened[group].add(name)
            elif phase in ("CONTENT", "ARGS", "END"):
                assert name in opened[group], one
            if phase == "END":
                opened[group].remove(name)
        elif group == "STEP":
            step = one.get("subagentRunId"), one["stepName"]
            assert (step in steps) == (phase == "FINISHED"), one
            steps ^= {step}
        elif group == "SUBAGENT":
            child = one["subagentRunId"]
            assert (child in children) == (phase != "STARTED"), one
            assert child not in gone, one
            children ^= {child}
            gone |= {child} if phase != "STARTED" else set()
    if events[-1]["type"] == "RUN_FINISHED":
        assert not any(opened.values()), opened
        assert not steps | children
    assert {one["type"] for one in events} <= {kind.value for kind in EventType}


def shown(events: list[dict[str, Any]], before: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """The messages that a client has after these events, by its reducer's rules."""
    messages = [dict(one) for one in before]
    for one in events:
        match one["type"]:
            case "MESSAGES_SNAPSHOT":
                messages = [dict(message) for message in one["messages"]]
            case "TEXT_MESSAGE_START":
                messages.append({"id": one["messageId"], "role": "assistant", "content": ""})
            case "TEXT_MESSAGE_CONTENT":
                found = next(message for message in messages if message["id"] == one["messageId"])
                found["content"] += one["delta"]
            case "TOOL_CALL_START":
                holder = next(
                    (message for message in messages if message["id"] == one["parentMessageId"]), None
                )
                if holder is None:
                    holder = {"id": one["parentMessageId"], "role": "assistant"}
                    messages.append(holder)
                call = {"id": one["toolCallId"], "function": {"name": one["toolCallName"], "arguments": ""}}
                holder["toolCalls"] = [*holder.get("toolCalls", []), call]
            case "TOOL_CALL_ARGS":
                calls = [call for message in messages for call in message.get("toolCalls", [])]
                next(call for call in calls if call["id"] == one["toolCallId"])["function"]["arguments"] += (
                    one["delta"]
                )
            case "TOOL_CALL_RESULT":
                messages.append(
                    {
                        "id": one["messageId"], "role": "tool", "toolCallId": one["toolCallId"],
                        "content": one["content"],
                    }
                )  # fmt: skip
    return messages


def said(messages: list[dict[str, Any]]) -> list[str]:
    """Who says what: a line a message, and a line a call."""
    lines = []
    for one in messages:
        if one.get("content"):
            lines.append(f"{one['role']}: {one['content']}")
        lines += [
            f"call: {call['function']['name']} {call['function']['arguments']}"
            for call in one.get("toolCalls", [])
        ]
    return lines


def state_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The state that a client has after these events."""
    state: dict[str, Any] = {}
    for one in events:
        if one["type"] == "STATE_SNAPSHOT":
            state = json.loads(json.dumps(one["snapshot"]))
        elif one["type"] == "STATE_DELTA":
            for step in one["delta"]:
                *path, last = step["path"].split("/")[1:]
                place = state
                for name in path:
                    place = place[name]
                assert step["op"] == "add" or last in place
                place[last] = step["value"]
    return state
