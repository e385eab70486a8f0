"""A small MCP server on standard input and output that a test can control.

Started as ``python -I -S mcp_server.py OPTIONS``; it needs the standard library alone, so it starts at once.
``OPTIONS`` is a JSON object with any of

``tools``, ``later``
    as listed besides its own, and those listed after ``grow`` was called; one named ``meta`` gives back what
    its call was sent with besides its arguments, one named ``page_first`` wants a page opened first
``start``
    what to do before anything: ``die``, ``hang``, ``garbage``, ``endless``, or ``deaf`` to every question
``starts``, ``dies_after``
        a file that gets a byte at each start; this many starts succeed before ``start`` takes effect
``child``
    a file for the process id of a child that ignores every request to end
``lingers``
        seconds that the process keeps running after it has closed its output, when it is asked to exit
``stubborn``
    ignores the end of its input and the request to end
``reads``
    it has resources and prompts, and answers these methods with these results
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

OPTIONS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
CANCELLED: list[Any] = []
ANSWERS: dict[Any, Any] = {}
WRITE = threading.Lock()
GROWN = threading.Event()
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def schema(**properties: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}}


def described(name: str, description: str, hint: str = "", **properties: str) -> dict[str, Any]:
    tool = {"name": name, "description": description, "inputSchema": schema(**properties)}
    return {**tool, "annotations": {hint: True}} if hint else tool


TOOLS = [
    described("echo", "Give a text back.", "readOnlyHint", text="string"),
    described("note", "Append to a file.", path="string", text="string", seconds="number"),
    described("slow", "Wait.", "idempotentHint", seconds="number"),
    described("die", "End the process.", text="string"), described("read_and_die", "x", "readOnlyHint"),
    described("environment", "Names and values."), described("fail", "Fail.", text="string"),
    described("refuse", "Fail as the protocol does."), described("big", "A long text.", size="number"),
    described("noise", "Write what is not a message.", lines="number"),
    described("flood", "Send messages without end."), described("blocks", "Every kind of content."),
    described("grow", "More tools."), described("ask", "Ask the client.", method="string"),
    described("cancelled", "Which calls were cancelled."),
]  # fmt: skip


def send(**message: Any) -> None:
    with WRITE:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def says(text: str, *, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def ask(method: str, given: Any = None) -> Any:
    """The client's answer to a request of ours."""
    key = f"ask-{time.monotonic_ns()}"
    usual = {
        "roots/list": {},
        "sampling/createMessage": {"messages": [], "maxTokens": 5},
        "elicitation/create": {"message": "who?", "requestedSchema": {"type": "object", "properties": {}}},
    }
    params = given or usual[method]
    send(id=key, method=method, params=params)
    while key not in ANSWERS:
        time.sleep(0.005)
    return ANSWERS[key]


def blocks() -> dict[str, Any]:
    clip = base64.b64encode(b"sound").decode()
    return {
        "content": [
            {"type": "text", "text": "one"},
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            {"type": "image", "data": clip, "mimeType": "image/tiff"},
            {"type": "audio", "data": clip, "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "file:///a.txt", "name": "a", "mimeType": "text/plain"},
            {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "inside b"}},
        ],
        "structuredContent": {"count": 6},
    }


def run(key: Any, name: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a call; ``None`` when it was answered, or never will be."""
    match name:
        case "echo":
            return says(given.get("text", ""))
        case "note":
            with Path(given["path"]).open("a") as file:
                file.write(given["text"])
            time.sleep(given.get("seconds", 0))
            return says("noted")
        case "slow":
            until = time.monotonic() + given["seconds"]
            while time.monotonic() < until and key not in CANCELLED:
                time.sleep(0.005)
            return says("waited")
        case "die" | "read_and_die":
            if "lingers" in OPTIONS:
                os.close(sys.stdout.fileno())
                time.sleep(OPTIONS["lingers"])
            print(given.get("text", "asked to exit"), file=sys.stderr, flush=True)
            os._exit(7)
        case "environment":
            return says(json.dumps(dict(os.environ)))
        case "fail":
            return says(given.get("text", "it failed"), failed=True)
        case "big":
            return says("x" * int(given["size"]))
        case "noise":
            with WRITE:
                for _ in range(int(given["lines"])):
                    sys.stdout.write("this is " + "no message " * 9 + "\n")
            return says("noisy")
        case "flood":
            while True:
                send(method="notifications/message", params={"level": "info", "data": "again"})
        case "blocks":
            return blocks()
        case "grow":
            GROWN.set()
            send(method="notifications/tools/list_changed")
            return says("grown")
        case "ask":
            return says(json.dumps(ask(given["method"], given.get("params"))))
        case "page_first":
            if not (opened := Path(given["path"])).exists():
                opened.touch()
                page = {"mode": "url", "message": "Pay", "url": given["url"], "elicitationId": "e1"}
                error = {"code": -32042, "message": "pay first", "data": {"elicitations": [page]}}
                send(id=key, error=error)
                return None
            return says("paid")
        case "cancelled":
            return says(json.dumps(CANCELLED))
    send(id=key, error={"code": -32602, "message": f"no such tool: {name}"})
    return None


def called(key: Any, params: dict[str, Any]) -> None:
    if params["name"] == "meta":
        send(id=key, result=says(json.dumps(params.get("_meta"))))
        return
    result = run(key, params["name"], params.get("arguments") or {})
    if result is not None and key not in CANCELLED:
        send(id=key, result=result)


def listed() -> list[dict[str, Any]]:
    return TOOLS + OPTIONS.get("tools", []) + (OPTIONS.get("later", []) if GROWN.is_set() else [])


def answer(message: dict[str, Any]) -> None:
    key, method = message.get("id"), message.get("method")
    if method is None:
        ANSWERS[key] = message.get("result", message.get("error"))
    elif method == "notifications/cancelled":
        CANCELLED.append(message["params"]["requestId"])
    elif OPTIONS.get("start") == "deaf" or key is None:
        return
    elif method == "initialize":
        capabilities = {"tools": {"listChanged": True}, "logging": {}}
        capabilities |= {"resources": {}, "prompts": {}} if OPTIONS.get("reads") else {}
        known = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": capabilities}
        send(id=key, result={**known, "serverInfo": {"name": "s", "version": "1"}})
    elif method == "tools/list":
        send(id=key, result={"tools": listed()})
    elif method in OPTIONS.get("reads", ()):
        wanted = message.get("params") or {}
        result = OPTIONS["reads"][method]
        send(
            id=key, result=json.loads(json.dumps(result).replace("$ARGUMENTS", str(wanted.get("arguments"))))
        )
    elif method == "tools/call":
        threading.Thread(target=called, args=(key, message["params"]), daemon=True).start()
    else:
        send(id=key, error={"code": -32601, "message": "Method not found"})


def begin() -> None:
    """What goes wrong before anything is said."""
    started = 1
    if starts := OPTIONS.get("starts"):
        with Path(starts).open("ab") as file:
            file.write(b"s")
        started = Path(starts).stat().st_size
    if OPTIONS.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if child := OPTIONS.get("child"):
        ignore = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True);"
            " time.sleep(60)"
        )
        grandchild = subprocess.Popen([sys.executable, "-I", "-S", "-c", ignore], stdout=subprocess.PIPE)
        assert grandchild.stdout is not None
        grandchild.stdout.readline()
        Path(child).write_text(str(grandchild.pid))
    how = OPTIONS.get("start") if started > OPTIONS.get("dies_after", 0) else ""
    if how == "die":
        print("cannot begin: the disk is on fire", file=sys.stderr, flush=True)
        sys.exit(3)
    if how == "hang":
        time.sleep(60)
    if how == "garbage":
        for _ in range(200):
            print("not a message", flush=True)
    while how == "endless":
        sys.stdout.write("x" * 65_536)


def main() -> None:
    begin()
    for line in sys.stdin:
        answer(json.loads(line))
    if OPTIONS.get("stubborn"):
        time.sleep(60)


main()
