"""``python -m fsm_agent``: the same as ``fsm-agent``."""

import sys

from fsm_agent.cli import main

sys.exit(main())
