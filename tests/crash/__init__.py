"""Programs that are killed, or kill themselves, and engines with a fault."""

from __future__ import annotations

import os
import signal

if "FSM_AGENT_TEST_POSTGRES_AT" in os.environ:
    from tests.helpers.on_postgres import keep_all_there

    keep_all_there()


def kill() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)
