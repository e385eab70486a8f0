"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="<provider>:<model>; default: what is there.")
]
BaseUrl = Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible server.")]
ApiKey = Annotated[str | None, typer.Option(help="API key; better set in the environment.")]
Home = Annotated[
    str | None, typer.Option(help="Data directory; default: $FSM_AGENT_HOME, else the platform's.")
]
MaxIterations = Annotated[int | None, typer.Option(help="Iterations that the turn may use.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as api_max_retries=5."),
]
Yes = Annotated[bool, typer.Option("--yes/--ask", "-y", help="Approve every tool call without asking.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
