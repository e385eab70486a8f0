"""What the server says that it can; everything else in the protocol it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm_agent.debug.dap.breakpoints import EXCEPTIONS

CAPABILITIES: Mapping[str, Any] = {
    "supportsConfigurationDoneRequest": True,
    "supportsFunctionBreakpoints": True,
    "supportsConditionalBreakpoints": True,
    "supportsHitConditionalBreakpoints": True,
    "supportsLogPoints": True,
    "supportsBreakpointLocationsRequest": True,
    "supportsExceptionInfoRequest": True,
    "supportsExceptionFilterOptions": True,
    "supportsEvaluateForHovers": True,
    "supportsClipboardContext": True,
    "supportsCompletionsRequest": True,
    "completionTriggerCharacters": [":", "."],
    "supportsStepBack": True,
    "supportsRestartFrame": True,
    "supportsSetVariable": True,
    "supportsDelayedStackTraceLoading": True,
    "supportsLoadedSourcesRequest": True,
    "supportsTerminateRequest": True,
    "supportsTerminateThreadsRequest": True,
    "supportTerminateDebuggee": True,
    "supportsSingleThreadExecutionRequests": True,
    "exceptionBreakpointFilters": [
        {
            "filter": one.name, "label": one.label, "default": True, "supportsCondition": one.target is not None,
            **({"conditionDescription": "over the counters: retries >= 2"} if one.target is not None else {}),
        }
        for one in EXCEPTIONS
    ],
}  # fmt: skip
