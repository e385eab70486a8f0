"""The commands and their options. Each command's work is in a module of its own, loaded when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from fsm_agent.cli.config_app import config
from fsm_agent.cli.diagram_app import diagram
from fsm_agent.cli.models_app import models
from fsm_agent.cli.options import (
    ApiKey,
    BaseUrl,
    Commands,
    Home,
    Json,
    MaxCost,
    MaxIterations,
    MaxSeconds,
    MaxTokens,
    Model,
    Sets,
    Tools,
    Yes,
)
from fsm_agent.cli.pending_app import pending
from fsm_agent.cli.sessions_app import sessions
from fsm_agent.cli.worker_app import worker

approvals = typer.Typer(
    cls=Commands, rich_markup_mode=None, help="What was approved or forbidden, for good or for a session."
)


@approvals.command("list")
def list_(json: Json = False, home: Home = None) -> None:
    """The patterns of calls that are allowed or denied without asking."""
    from fsm_agent.cli.approvals import list_approvals

    raise typer.Exit(list_approvals(home, json))


@approvals.command()
def remove(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="As it is listed.")],
    session: Annotated[str, typer.Option(metavar="ID", help="Only what was answered for this session.")] = "",
    home: Home = None,
) -> None:
    """Forget one: the next such call is asked about again."""
    from fsm_agent.cli.approvals import remove_approval

    raise typer.Exit(remove_approval(home, pattern, session))


app = typer.Typer(
    add_completion=False,
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(diagram, name="diagram")
app.add_typer(sessions, name="sessions")
app.add_typer(pending, name="pending")
app.add_typer(approvals, name="approvals")
app.add_typer(config, name="config")
app.add_typer(models, name="models")

Session = Annotated[
    str | None, typer.Option(help="Go on in this session: its id, the beginning of one, or its title.")
]
Remote = Annotated[
    bool, typer.Option("--remote", help="Have a worker run it (`fsm-agent worker`), and show what it does.")
]
TableName = Annotated[
    str | None, typer.Argument(metavar="[MODULE:TABLE]", help="A transition table; default: the turn's.")
]


def _version(wanted: bool) -> None:
    if wanted:
        from fsm_agent import __version__

        typer.echo(f"fsm-agent {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An agent engine whose turn is an explicit finite-state machine. Without a model it runs
    offline:demo."""


@app.command()
def run(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help='What to do; "-" reads it from standard input.')
    ],
    model: Model = None,
    json: Json = False,
    home: Home = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    max_iterations: MaxIterations = None,
    max_cost: MaxCost = None,
    max_tokens: MaxTokens = None,
    max_seconds: MaxSeconds = None,
    set: Sets = None,
    tool: Tools = None,
    yes: Yes = False,
    session: Session = None,
    image: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="An image that goes with the text; repeatable.")
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A PDF, a text or audio that goes with the text; repeatable."),
    ] = None,
    output_schema: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A JSON schema for the answer; only the answer is printed."),
    ] = None,
    remote: Remote = False,
) -> None:
    """Run one turn. Exit codes: 0 completed, 1 failed, 2 wrong use, 3 partial, 4 suspended, 130
    interrupted."""
    from fsm_agent.cli.given import CliOptions, bounded
    from fsm_agent.cli.run import run

    sets = bounded(set, max_cost, max_tokens, max_seconds)
    given = CliOptions(model, base_url, api_key, home, max_iterations, sets, yes, session, tools=tool or ())
    if remote:
        from fsm_agent.cli.remote import run_remote

        raise typer.Exit(run_remote(text, given, json, image or (), file or (), output_schema))
    raise typer.Exit(run(text, given, json, image or (), file or (), output_schema))


@app.command()
def chat(
    model: Model = None,
    home: Home = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    max_iterations: MaxIterations = None,
    max_cost: MaxCost = None,
    max_tokens: MaxTokens = None,
    max_seconds: MaxSeconds = None,
    set: Sets = None,
    tool: Tools = None,
    yes: Yes = False,
    session: Session = None,
    remote: Remote = False,
) -> None:
    """Talk with the agent, turn after turn."""
    from fsm_agent.cli.chat import chat
    from fsm_agent.cli.given import CliOptions, bounded

    sets = bounded(set, max_cost, max_tokens, max_seconds)
    given = CliOptions(model, base_url, api_key, home, max_iterations, sets, yes, session, tools=tool or ())
    if remote:
        from fsm_agent.cli.remote import chat_remote

        raise typer.Exit(chat_remote(given))
    raise typer.Exit(chat(given))


app.command()(worker)


@app.command()
def acp(
    model: Model = None,
    home: Home = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    max_iterations: MaxIterations = None,
    set: Sets = None,
    tool: Tools = None,
    yes: Yes = False,
) -> None:
    """Serve an editor over standard input and output (Agent Client Protocol)."""
    from fsm_agent.cli.acp import acp
    from fsm_agent.cli.given import CliOptions

    given = CliOptions(
        model, base_url, api_key, home, max_iterations, set or (), yes, None, "acp", tool or ()
    )
    raise typer.Exit(acp(given))


@app.command()
def verify(
    table: TableName = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=N", help="A setting (max_iterations=9) or a maximum (fallbacks=2)."
        ),
    ] = None,
    promela: Annotated[str | None, typer.Option(metavar="FILE", help="Write a model for spin there.")] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="<provider>:<model>, to bound what a turn costs with it."),
    ] = None,
    fallback: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Another model that a turn may go on with; repeatable."),
    ] = None,
    watch: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Bound the visits of it; default: what a cap counts, or all."),
    ] = None,
    counterexample: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a run that shows a fault, as a script."),
    ] = None,
    time: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for the bounds; those not refined in it say so.")
    ] = 20.0,
    json: Json = False,
) -> None:
    """Prove that every turn ends, and print the proof. Exit codes: 0 proved, 1 a check failed, 2 wrong
    use."""
    from fsm_agent.cli.verify import verify

    models = (*((model,) if model else ()), *(fallback or ()))
    raise typer.Exit(
        verify(table, set or (), json, promela, tuple(watch or ()), time, counterexample, models)
    )


@app.command()
def simulate(
    fault: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A fault that the turn meets; default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random part of waits.")] = 0,
    json: Json = False,
) -> None:
    """Run a turn against a provider that fails, and print its path.

    The provider is scripted and answers over real HTTP; waits are simulated.
    """
    from fsm_agent.cli.simulate import simulate

    raise typer.Exit(simulate(fault or (), seed, json))


@app.command()
def insights(
    days: Annotated[float, typer.Option(help="How far back.")] = 30,
    json: Json = False,
    home: Home = None,
) -> None:
    """What the turns of the last days did, and cost."""
    from fsm_agent.cli.insights import report

    raise typer.Exit(report(home, days, json))


@app.command()
def debug(
    turn: Annotated[
        str | None,
        typer.Argument(
            metavar="[TURN]", help="A turn, or how its id begins; or module:name of your own table."
        ),
    ] = None,
    attach: Annotated[
        str | None, typer.Option(metavar="TURN", help="A turn that another process runs.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Start a turn with this message, paused.")
    ] = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page (the default), until interrupted.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the page; 0 for any that is free.")] = 0,
    open: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    dap: Annotated[
        str | None,
        typer.Option(
            metavar="PORT|PATH",
            help="Serve an editor (Debug Adapter Protocol) at this socket, or on this port, with a token.",
        ),
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve one editor over standard input and output.")
    ] = False,
    model: Model = None,
    home: Home = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    max_iterations: MaxIterations = None,
    set: Sets = None,
    tool: Tools = None,
) -> None:
    """Step through a turn, look back, change it, and go on from anywhere."""
    from fsm_agent.cli.debug import Wanted, debug
    from fsm_agent.cli.given import CliOptions

    wanted = Wanted(turn, attach, task, web, port, open, dap, stdio)
    raise typer.Exit(
        debug(wanted, CliOptions(model, base_url, api_key, home, max_iterations, set or (), tools=tool or ()))
    )


@app.command()
def undo(
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="Its id, the beginning of one, or its title; default: any."),
    ] = None,
    turn: Annotated[
        int | None, typer.Option(metavar="N", help="A number of --list; default: the newest turn's.")
    ] = None,
    list: Annotated[
        bool, typer.Option("--list", help="Which checkpoints there are, the newest first.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what has changed since, and change nothing.")
    ] = False,
    home: Home = None,
) -> None:
    """Put the files of this folder back as they were before a turn's tools changed them.

    The conversation stays as it is. What is there now is kept before, so that this can be undone, too.
    """
    from fsm_agent.cli.undo import undo

    raise typer.Exit(undo(home, session, turn, listed=list, diff=diff))


@app.command()
def doctor(home: Home = None) -> None:
    """Check that this machine has what a turn needs. Exit code 1 when something is missing."""
    from fsm_agent.cli.doctor import doctor

    raise typer.Exit(doctor(home))
