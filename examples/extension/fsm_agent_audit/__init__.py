"""An extension as a package of its own: a tool, a layer, a setting, a command and a line of ``doctor``.

It counts what tools an agent calls, denies a tool that the setting ``forbidden`` names, lets the model ask
for the counts, and prints them with ``fsm-agent audit show``."""

from collections import Counter
from typing import Annotated

import typer
from pydantic import BaseModel

from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.extension import Check, Extension, kept_values


class AuditSettings(BaseModel, extra="forbid"):
    """``[settings.extensions.audit]``. ``forbidden``: tools that are denied, whatever rules say."""

    forbidden: list[str] = []


class Audit(Extension):
    name = "audit"
    settings = AuditSettings
    requests = (RunTool,)
    when_it_fails = "end"  # what cannot be counted is not done

    def tools(self):
        def calls_so_far() -> dict[str, int]:
            """How often each tool was called in this home."""
            return self.kept.get("calls", {})

        return [calls_so_far]

    def prompt(self):
        return ["Calls of tools are counted; calls_so_far says how many there were."]

    async def around(self, request, turn, call_next):
        if request.name in self.config.forbidden:
            return ToolOutcome(request.call_id, "denied", f"the audit forbids {request.name}")
        counts = Counter(self.kept.get("calls", {}))
        counts[request.name] += 1
        await self.kept.put("calls", dict(counts))  # before the call: one that fails was made, too
        return await call_next(request)

    def checks(self):
        yield Check("calls counted", str(sum(self.kept.get("calls", {}).values())))

    @classmethod
    def commands(cls):
        app = typer.Typer(help="What tools were called.")

        @app.callback()
        def _audit() -> None:
            """What tools were called."""

        @app.command()
        def show(home: Annotated[str | None, typer.Option(help="Folder of the agent.")] = None) -> None:
            """Print how often each tool was called."""
            for name, count in kept_values(cls, home).get("calls", {}).items():
                typer.echo(f"{count:>6} {name}")

        return app
