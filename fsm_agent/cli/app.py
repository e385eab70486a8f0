"""The commands and their options. Each command's work is in a module of its own, loaded when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from fsm_agent.cli.config_app import config
from fsm_agent.cli.diagram_app import diagram
from fsm_agent.cli.models_app import models
from fsm_agent.cli.options import LIMITS, SHOWN, CliOptions, Commands, Home, Json, with_agent
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
    add_completion=True,
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
@with_agent()
def run(
    given: CliOptions,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="What to do; default, or with -: standard input.")
    ] = None,
    json: Json = False,
    image: Annotated[
        list[str], typer.Option(metavar="FILE", help="An image that goes with the text; repeatable.")
    ] = [],  # noqa: B006 - typer reads it
    file: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="A PDF, a text or audio that goes with the text; repeatable."),
    ] = [],  # noqa: B006
    output_schema: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A JSON schema for the answer, which is printed as JSON."),
    ] = None,
    remote: Remote = False,
) -> None:
    """Run one turn.

    The answer goes to standard output, everything else to standard error. Exit codes: 0 completed, 1 failed,
    2 wrong use, 3 partial, 4 suspended, 130 interrupted.
    """
    if remote:
        from fsm_agent.cli.remote import run_remote

        raise typer.Exit(run_remote(text, given, json, image, file, output_schema))
    from fsm_agent.cli.run import run

    raise typer.Exit(run(text, given, json, image, file, output_schema))


@app.command()
@with_agent("quiet")
def chat(given: CliOptions, remote: Remote = False) -> None:
    """Talk with the agent, turn after turn."""
    if remote:
        from fsm_agent.cli.remote import chat_remote

        raise typer.Exit(chat_remote(given))
    from fsm_agent.cli.chat import chat

    raise typer.Exit(chat(given))


app.command()(worker)


@app.command()
@with_agent("session", *SHOWN)
def acp(given: CliOptions) -> None:
    """Serve an editor (Agent Client Protocol).

    It talks over standard input and output.
    """
    from dataclasses import replace

    from fsm_agent.cli.acp import acp

    raise typer.Exit(acp(replace(given, source="acp")))


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
    certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write what the proof rests on, for check_certificate.py."),
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
    watched = tuple(watch or ())
    raise typer.Exit(
        verify(table, set or (), json, promela, watched, time, counterexample, models, certificate)
    )


@app.command()
def simulate(
    fault: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A fault that the turn meets; default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random part of waits.")] = 0,
    json: Json = False,
) -> None:
    """Run a turn against a provider that fails.

    Its path is printed.

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
@with_agent("yes", "session", *LIMITS, *SHOWN)
def debug(
    given: CliOptions,
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
) -> None:
    """Step through a turn in the browser.

    Look back, change it, and go on from anywhere; also in an editor.
    """
    from fsm_agent.cli.debug import Wanted, debug

    raise typer.Exit(debug(Wanted(turn, attach, task, web, port, open, dap, stdio), given))


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
    """Take back what tools did to the files here.

    The files of this folder are put back as they were before a turn's tools changed them.
    The conversation stays as it is. What is there now is kept before, so that this can be undone, too.
    """
    from fsm_agent.cli.undo import undo

    raise typer.Exit(undo(home, session, turn, listed=list, diff=diff))


@app.command()
def examples(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A new one.")] = "examples",
) -> None:
    """Write the example programs into a folder."""
    from fsm_agent.cli.examples import copy_examples

    raise typer.Exit(copy_examples(folder))


@app.command()
def doctor(home: Home = None) -> None:
    """Check that this machine has what a turn needs. Exit code 1 when something is missing."""
    from fsm_agent.cli.doctor import doctor

    raise typer.Exit(doctor(home))
