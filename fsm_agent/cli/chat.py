"""``fsm-agent chat``: turn after turn in one session."""

from __future__ import annotations

import sys
from dataclasses import replace

from fsm_agent.cli.approval import attend
from fsm_agent.cli.live import ProgressView
from fsm_agent.cli.meanwhile import Meanwhile
from fsm_agent.cli.options import CliOptions
from fsm_agent.cli.prompt import piped, typed
from fsm_agent.cli.screen import console_of
from fsm_agent.cli.talk import Talk
from fsm_agent.support.threads import in_a_loop


def chat(given: CliOptions) -> int:
    """Talk until the input ends. Returns 0; a message that cannot be used is refused and the talk goes on."""
    person = sys.stdin.isatty()
    live = ProgressView(console_of(sys.stderr), console_of(sys.stdout), verbose=given.verbose)
    attend(live, given.yes)
    meanwhile = None
    if person and live.console.is_terminal and sys.platform != "win32":
        meanwhile = Meanwhile(live.typed)
        live.aside = meanwhile.aside
    talk = Talk(replace(given, source="chat"), live, meanwhile, mentions=person)
    talk.greet()
    read = typed(talk.agent.home, talk.toolbar) if person else piped(live)
    in_a_loop(talk.go_on(read))
    return 0
