"""The final text of a turn: the model's text that may be the answer, or why there is no answer."""

from __future__ import annotations

import re

from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.result import ExitReason as E
from fsm_agent.conversation.result import Outcome
from fsm_agent_states.logic import facts
from fsm_agent_states.turn import TurnState

TEXTS: dict[E, str] = {
    E.PARTIAL_STREAM_RECOVERY: "The reply broke off; this is what had arrived.",
    E.BUDGET_EXHAUSTED: (
        "The limit of {iterations} iterations was reached and no summary could be obtained{because}."
    ),
    E.EMPTY_EXHAUSTED: (
        "The model gave only empty replies, {attempts} requests in all. Try again, or use another model."
    ),
    E.LENGTH_EXHAUSTED: (
        "The answer was still cut off after {continuations} continuations; this is what arrived. Raise the"
        " output cap: max_output_tokens{cap}."
    ),
    E.THINKING_BUDGET_EXHAUSTED: (
        "The model used its whole output for reasoning. Lower its effort or raise max_output_tokens."
    ),
    E.TRUNCATED_TOOL_CALL: (
        "The model's tool call was cut off by the output limit {cut} times and was not run. Raise the output"
        " cap: max_output_tokens{cap}."
    ),
    E.STREAM_DROPPED_TOOL_CALL: (
        "The connection broke inside the model's tool call again and again; it was not run."
    ),
    E.INVALID_TOOL_CALLS: (
        "The model kept making tool calls that cannot be used{because}; the turn was stopped."
    ),
    E.SCRATCHPAD_INCOMPLETE: "The model never finished its scratchpad.",
    E.RESPONSES_INCOMPLETE: "The provider kept returning incomplete replies.",
    E.CONTENT_POLICY: "The model declined this request{because}. Rephrase it, or use another model.",
    E.OVERFLOW_UNCOMPRESSIBLE: (
        "The conversation is too long for this model and cannot be made shorter{because}."
    ),
    E.COMPRESSION_DISABLED: (
        "The conversation is too long for this model and compaction is switched off{because}."
    ),
    E.OUTPUT_CAP: (
        "The configured output limit is larger than this model allows{because}. Lower max_output_tokens."
    ),
    E.API_RETRIES_EXHAUSTED: "The provider failed {tried} times ({failure}){because}.{advice}",
    E.NON_RETRYABLE_ERROR: "The provider refused the request ({failure}){because}.{advice}",
    E.GUARDRAIL_HALT: "The turn was stopped because it was going in circles: {guardrail}.",
    E.LOCAL_PROCESSING_ERROR: "An error inside the agent itself stopped the turn{because}. Please report it.",
    E.RUNTIME_CONTEXT_TOO_SMALL: (
        "The model's window of {window} tokens is too small for the system prompt, the tools and this"
        " message. Start the server with a larger context window, or use fewer tools."
    ),
    E.COST_LIMIT: "The turn was stopped before a limit in money was passed{because}.",
    E.TOKEN_LIMIT: "The turn was stopped before a limit in tokens was passed{because}.",
    E.TIME_LIMIT: "The turn was stopped because a limit in seconds was reached{because}.",
    E.GUARDRAIL_BLOCKED: "A guardrail stopped the turn{because}.",
    E.OUTPUT_INVALID: "The model gave no answer of the type that was asked for{because}.",
    E.ATTEMPT_CAP_REACHED: "The cap on requests was reached ({attempts} sent){because}.",
}

ADVICE = {
    "auth": " Check the API key of {provider} and what it may be used for.",
    "auth_permanent": " The credential is no longer valid; sign in again.",
    "rate_limit": " Wait a while, or add another key or a fallback model.",
    "server_error": " Try again later, or add a fallback model.",
    "overloaded": " Try again later, or add a fallback model.",
    "timeout": " Check that {address} can be reached.",
    "stale": " Raise stale.stream if this model thinks that long, or add a fallback model.",
    "billing": " Check the balance and billing of the account.",
    "model_not_found": " Check the model's name: {provider} does not know {model!r}.",
    "no_such_path": " Check base_url: {address} has no {mode} API.{lack}",
    "unknown": " Check that {address} is where a {mode} API answers.",
    "invalid_response": " Check that {address} speaks {mode}: base_url and api_mode must fit.{lack}",
    "provider_policy_blocked": " Check the data and privacy settings of the provider's account.",
    "ssl_cert": " Check the certificates of this machine, or SSL_CERT_FILE.",
}
FRAGMENT = 24
"""Maximum characters of a text without a sentence end that counts as a fragment and needs explaining."""
UNANSWERED = "Nothing answers at {address} ({tried} tries){because}. Is the server running? Check base_url."


def outcome_of(turn: TurnState) -> Outcome:
    """Return how the turn ends; a turn without an exit reason ended by a bug."""
    return (turn.exit or E.LOCAL_PROCESSING_ERROR).outcome


def spoken_text(turn: TurnState) -> str:
    """Return the model's own text that may be the answer."""
    draft = turn.draft
    if turn.ending.blocked is not None:
        return ""
    if draft.answer is not None:
        return draft.answer
    match turn.exit:
        case E.PRIOR_CONTENT_USED:
            return draft.prior_content
        case (
            E.INTERRUPTED_IN_CALL
            | E.INTERRUPTED_BEFORE_CALL
            | E.INTERRUPTED_IN_BACKOFF
            | E.INTERRUPTED_IN_TOOLS
        ):
            return (
                (draft.partial or draft.begun or draft.held) if turn.settings.interrupt.keep_partial else ""
            )
        case E.RESPONSES_INCOMPLETE:
            return draft.begun + draft.partial
    return draft.begun or draft.held


def final_text(turn: TurnState, text: str) -> str | None:
    """Return what the user reads: the spoken text, the reason why nothing was spoken, or both."""
    reason = turn.exit
    if reason is E.HANDED_OVER:
        return f"(handed over to {turn.tooling.handed_to})"
    if reason in (E.TEXT_RESPONSE, E.PRIOR_CONTENT_USED, E.MAX_ITERATIONS_SUMMARY):
        return text
    explanation = explain(turn) if turn.settings.explain_abnormal_end else ""
    if not text.strip():
        return explanation or None
    if (
        explanation
        and reason is not E.LENGTH_EXHAUSTED
        and len(text) <= FRAGMENT
        and text.rstrip()[-1] not in ".!?…"
    ):
        return f"{text}\n\n({explanation})"
    return text


def closing_row(turn: TurnState, text: str) -> Message:
    """Build the last row: the model's text is stored as its own; a note of ours is stored for people and
    never sent."""
    interrupted, reply = outcome_of(turn) is Outcome.INTERRUPTED, turn.call.reply
    if text.strip():
        finish = "interrupted" if interrupted else reply.finish if reply else None
        return Message(
            "assistant",
            text,
            reasoning=turn.call.thoughts or None,
            finish_reason=finish,
            interrupted=interrupted,
            blocks=reply.blocks if reply and turn.draft.answer is not None else (),
        ).made_by(turn.call.issuer)
    note = turn.ending.final_response or ("(interrupted)" if interrupted else "(no answer)")
    return Message("assistant", note, finish_reason="note", interrupted=interrupted, wire=False)


# A 400 on a very large session. The message stays in the transcript for people (`wire: false`) and is not
# sent again, so a session cannot grow with every failed attempt.


def withdraws(turn: TurnState) -> bool:
    """Return whether the user's message is not sent again: a guardrail refused it, or it is a bad request on
    a very large session, which would grow with every try if each left its message."""
    if turn.ending.blocked is not None and turn.ending.blocked["what"] == "message":
        return True
    failure = turn.recovery.failure
    refused = turn.exit is E.NON_RETRYABLE_ERROR and failure is not None and failure.status == 400
    large = len(turn.history) > 80 or turn.call.estimate > 50_000
    return refused and large and facts.only_asked(turn)


def explain(turn: TurnState) -> str:
    """Return one or two sentences that explain the exit; empty when there is nothing to explain."""
    text = TEXTS.get(turn.exit) if turn.exit else None
    if text is None:
        return ""
    accounting, given = turn.accounting, turn.settings.max_output_tokens
    if turn.exit is E.API_RETRIES_EXHAUSTED and accounting.unsent and not accounting.request_count:
        text = UNANSWERED
    return text.format(
        provider=turn.setup.runtime.provider,
        address=_address(turn),
        tried=accounting.request_count + accounting.unsent,
        cap="" if given is None else f", now {given:,}",
        iterations=turn.settings.max_iterations,
        because=f": {turn.recovery.error.rstrip('.')}" if turn.recovery.error else "",
        attempts=accounting.request_count,
        continuations=turn.count("continuations"),
        cut=turn.count("continuations") + 1,
        failure=turn.recovery.failure_class.replace("_", " ") or "error",
        advice=_advice(turn),
        guardrail=(turn.tooling.guardrails.halted or {}).get("reason", ""),
        window=turn.setup.runtime.window,
    )


VERSIONED = re.compile(r"/v\d\w*(/|$)")


def _advice(turn: TurnState) -> str:
    """Return the advice for the failure; an answer in HTML means that something other than an API is at that
    address."""
    at_version = VERSIONED.search(turn.setup.runtime.base_url or "/v1")
    lack = turn.recovery.failure_class == "no_such_path" and not at_version
    name = "invalid_response" if "HTML page" in turn.recovery.error else turn.recovery.failure_class
    return ADVICE.get(name, "").format(
        provider=turn.setup.runtime.provider,
        model=turn.setup.runtime.model,
        address=_address(turn),
        mode=turn.setup.runtime.api_mode.replace("_", " "),
        lack=" Does the address lack /v1?" if lack else "",
    )


def _address(turn: TurnState) -> str:
    return turn.setup.runtime.base_url or "the address"
