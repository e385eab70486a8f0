"""Reading a request of any wire back into rows of chat completions, so that one checker judges them all.

Written down from the vendors' documentation, not from the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def chat_rows(body: Mapping[str, Any]) -> list[Row]:
    """The conversation of a request, whatever wire it is of; reasoning is left out."""
    if "input" in body:
        return _from_responses(body)
    if (
        "max_tokens" in body
        and "messages" in body
        and not any(row["role"] == "system" for row in body["messages"])
    ):
        return _from_anthropic(body)
    rows: list[Row] = body["messages"]
    return rows


def rows_key(body: Mapping[str, Any]) -> str:
    """The name of the list that grows."""
    return "input" if "input" in body else "messages"


def _from_responses(body: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = [{"role": "system", "content": body["instructions"]}] if "instructions" in body else []
    for item in body["input"]:
        if item["type"] == "message":
            rows.append({"role": item["role"], "content": item["content"]})
        elif item["type"] == "function_call":
            if rows[-1]["role"] != "assistant":
                rows.append({"role": "assistant", "content": None})
            call = {"name": item["name"], "arguments": item["arguments"]}
            rows[-1].setdefault("tool_calls", []).append(
                {"id": item["call_id"], "type": "function", "function": call}
            )
        elif item["type"] == "function_call_output":
            rows.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return rows


def _from_anthropic(body: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = [{"role": "system", "content": _text(body["system"])}] if "system" in body else []
    for message in body["messages"]:
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        for block in blocks:
            if block["type"] == "tool_result":
                rows.append(
                    {
                        "role": "tool",
                        "tool_call_id": block["tool_use_id"],
                        "content": _text(block.get("content", "")),
                    }
                )
        said = [block for block in blocks if block["type"] in ("text", "image", "document")]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if said or calls:
            row: Row = {"role": message["role"], "content": _text(said) or None}
            if calls:
                row["tool_calls"] = [_call(block) for block in calls]
            rows.append(row)
    return rows


def _call(block: Mapping[str, Any]) -> Row:
    return {
        "id": block["id"],
        "type": "function",
        "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
    }


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", f"({block['type']})")) for block in content)
