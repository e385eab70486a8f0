from __future__ import annotations

import os

if "FSM_AGENT_TEST_POSTGRES_AT" in os.environ:
    from tests.helpers.on_postgres import keep_all_there

    keep_all_there()
