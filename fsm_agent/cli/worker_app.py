"""The options of ``fsm-agent worker``."""

from __future__ import annotations

from typing import Annotated

import typer

from fsm_agent.cli.options import Home, Sets


def worker(
    app: Annotated[
        str,
        typer.Option("--app", metavar="MODULE:NAME", help="A function that returns the agent of a turn."),
    ],
    slots: Annotated[
        int | None, typer.Option(help="Turns that run at once; default: dispatch.slots.")
    ] = None,
    temporal: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A Temporal server; default: dispatch.temporal.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Of that server.")] = None,
    database_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A PostgreSQL database; better set in the environment."),
    ] = None,
    home: Home = None,
    set: Sets = (),  # type: ignore[assignment]
) -> None:
    """Run turns that `run --remote`, `chat --remote` and programs queue, until a signal comes."""
    from fsm_agent.cli.worker import worker

    raise typer.Exit(worker(app, home, list(set), slots, temporal, namespace, database_url))
