"""The commands and their options. Each command's work is in a module of its own, loaded when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[str | None, typer.Option("--model", "-m", help="<provider>:<model>; default: what is there.")]
BaseUrl = Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible server.")]
ApiKey = Annotated[str | None, typer.Option(help="API key; better set in the environment.")]
Home = Annotated[str | None, typer.Option(help="Data directory; default: $FSM_AGENT_HOME, else the platform's.")]
MaxIterations = Annotated[int | None, typer.Option(help="Iterations that the turn may use.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as api_max_retries=5.")]
Yes = Annotated[bool, typer.Option("--yes/--ask", "-y", help="Approve every tool call without asking.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
TableName = Annotated[str | None, typer.Argument(metavar="[MODULE:TABLE]", help="A transition table; default: the turn's.")]


def _version(wanted: bool) -> None:
    if wanted:
        from fsm_agent import __version__

        typer.echo(f"fsm-agent {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """An agent engine whose turn is an explicit finite-state machine. Without a model it runs offline:demo."""


@app.command()
def run(
    text: Annotated[str, typer.Argument(metavar="TEXT", help='What to do; "-" reads it from standard input.')],
    model: Model = None,
    json: Json = False,
    home: Home = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    max_iterations: MaxIterations = None,
    set: Sets = None,
    yes: Yes = False,
) -> None:
    """Run one turn. Exit codes: 0 completed, 1 failed, 2 wrong use, 3 partial, 130 interrupted."""
    from fsm_agent.cli.given import Given
    from fsm_agent.cli.run import run

    raise typer.Exit(run(text, Given(model, base_url, api_key, home, max_iterations, set or (), yes), json))


@app.command()
def chat(
    model: Model = None,
    home: Home = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    max_iterations: MaxIterations = None,
    set: Sets = None,
    yes: Yes = False,
) -> None:
    """Talk with the agent, turn after turn."""
    from fsm_agent.cli.chat import chat
    from fsm_agent.cli.given import Given

    raise typer.Exit(chat(Given(model, base_url, api_key, home, max_iterations, set or (), yes)))


@app.command()
def diagram(
    table: TableName = None,
    format: Annotated[str, typer.Option("--format", "-f", help="mermaid, dot, svg, md or json.")] = "mermaid",
) -> None:
    """Print the diagram of a transition table."""
    from fsm_agent.cli.table import diagram

    raise typer.Exit(diagram(table, format))


@app.command()
def verify(
    table: TableName = None,
    set: Annotated[list[str] | None, typer.Option("--set", metavar="LIMIT=N", help="A limit, such as iterations=200.")] = None,
    json: Json = False,
) -> None:
    """Prove that every turn ends, and print the proof. Exit code 1 when a check fails."""
    from fsm_agent.cli.table import verify

    raise typer.Exit(verify(table, set or (), json))


@app.command()
def simulate(
    fault: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A fault that the turn meets; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random part of waits.")] = 0,
    json: Json = False,
) -> None:
    """Run a turn against a provider that fails, and print its path.

    The provider is scripted and answers over real HTTP; waits are simulated.
    """
    from fsm_agent.cli.simulate import simulate

    raise typer.Exit(simulate(fault or (), seed, json))


@app.command()
def doctor(home: Home = None) -> None:
    """Check that this machine has what a turn needs. Exit code 1 when something is missing."""
    from fsm_agent.cli.doctor import doctor

    raise typer.Exit(doctor(home))
