"""No framework: a loop over the openai package, streaming, nothing kept. What every figure is to be compared
with."""

import json
from importlib.metadata import version
from typing import Any

import openai

VERSION = version("openai")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}
]


async def look(n: int) -> str:
    return f"{n}: {'a line of tool output ' * 20}"


async def turn(url: str, rounds: int) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "You look at things."},
        {"role": "user", "content": "go"},
    ]
    async with openai.AsyncOpenAI(base_url=url, api_key="k") as client:
        while True:
            text, calls = "", {}
            stream = await client.chat.completions.create(
                model=str(rounds), messages=messages, tools=TOOLS, stream=True
            )
            async for chunk in stream:
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    for part in choice.delta.tool_calls or ():
                        entry = calls.setdefault(part.index, {"id": part.id, "name": "", "arguments": ""})
                        entry["name"] += (part.function and part.function.name) or ""
                        entry["arguments"] += (part.function and part.function.arguments) or ""
            if not calls:
                assert text == "done"
                return
            wire = [
                {
                    "id": c["id"],
                    "type": "function",
                    "function": {"name": c["name"], "arguments": c["arguments"]},
                }
                for c in calls.values()
            ]
            messages.append({"role": "assistant", "content": None, "tool_calls": wire})
            for entry in calls.values():
                result = await look(**json.loads(entry["arguments"]))
                messages.append({"role": "tool", "tool_call_id": entry["id"], "content": result})
