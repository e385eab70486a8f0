"""One turn as a chat completion: its text as chunks, and the whole completion.

This wire has only text: in it, a tool call is the client's to make, so calls that the server makes are not
shown, and neither is reasoning. Streamed text cannot be retracted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from openai import BaseModel
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails

from fsm_agent.composition.model_caller import FROM_THE_START, PARAGRAPH
from fsm_agent.conversation.result import ExitReason, Outcome, TurnResult
from fsm_agent.dispatch.follow import ServedEvent
from fsm_agent.runtime.events import InterimText, StreamDelta, Transition, Voided
from fsm_agent.serve.openai import FIELD, engine_event, facts_of_result, facts_of_wait
from fsm_agent.serve.openai.responses import START, Point, point_of
from fsm_agent.sessions.store.pending import Pending

Finish = Literal["stop", "length", "content_filter"]
REFUSED = (ExitReason.CONTENT_POLICY, ExitReason.GUARDRAIL_BLOCKED)


@dataclass(frozen=True, slots=True)
class CompletionHead:
    """The parts of a completion that are known before its turn. ``model``: the name that the client used.
    ``typed``: the answer has a type, and none of it is shown before it is valid."""

    turn: str
    session: str
    created: int
    model: str
    typed: bool = False

    @property
    def id(self) -> str:
        """Return the id of the completion, which names its turn."""
        return f"chatcmpl-{self.turn}"


class ChatTranslator:
    """The stream of one completion. ``usage``: the last chunk has the number of tokens that the turn took.
    ``extras``: also send the engine's own events, as chunks without a choice. ``failed``: the result of a
    failed turn, for which the wire has no end, only an error."""

    def __init__(self, head: CompletionHead, *, usage: bool = False, extras: bool = False) -> None:
        self.head, self._usage, self._extras = head, usage, extras
        self.failed: TurnResult[Any] | None = None
        self._turn, self._shown = head.turn, False
        self._now = self._before = ""  # what was shown since the last boundary, and before it
        self._last_piece = ""
        self._point: Point = START  # of the last piece

    def begin(self) -> list[BaseModel]:
        """Return the beginning of the stream."""
        return [self._chunk(ChoiceDelta(role="assistant", content=""))]

    def hear(self, served: ServedEvent) -> list[BaseModel]:
        """Return the chunks for an event of the turn."""
        sent = list[BaseModel]()
        if served.turn != self._turn:  # the conversation was handed over
            self._turn = served.turn
            self._pass_boundary()
        match served.event.values:
            case StreamDelta(text=str(text)) if text and not self.head.typed:
                self._point = point_of(served.id)
                sent = self._write(text)
            case InterimText(text=text) if not self.head.typed and self._before.strip() != text.strip():
                sent = self._write(text)
                self._pass_boundary()
            case Transition(dest="ExecuteTools"):
                self._pass_boundary()
            case Voided() if self._now and self._point > point_of(served.id):
                sent = self._write(FROM_THE_START)
        if self._extras and (extra := engine_event(served)) is not None:
            sent.append(self._chunk(None, facts=extra.model_dump(mode="json", exclude_unset=True)))
        return sent

    def end(self, result: TurnResult[Any]) -> list[BaseModel]:
        """Return the end of the stream of a turn that has ended; nothing if it failed, but set ``failed``."""
        if result.turn_exit_reason.outcome is Outcome.FAILED:
            self.failed = result
            return []
        answer, sent = answer_of(result), list[BaseModel]()
        if answer and answer.strip() not in (self._now.strip(), self._before.strip()):
            sent = self._write(answer)
        return [*sent, *self._last(finish_of(result), facts_of_result(result), usage_of(result))]

    def wait(self, pending: Sequence[Pending]) -> list[BaseModel]:
        """Return the end of the stream of a turn that is suspended."""
        self._pass_boundary()
        facts = facts_of_wait(self.head.turn, self.head.session, pending)
        return [*self._write(words_of_wait(pending)), *self._last("length", facts, None)]

    def _last(
        self, finish: Finish, facts: Mapping[str, Any], usage: CompletionUsage | None
    ) -> list[BaseModel]:
        sent: list[BaseModel] = [self._chunk(ChoiceDelta(), finish, facts=facts)]
        if self._usage and usage is not None:
            sent.append(self._chunk(None, usage=usage))
        return sent

    def _pass_boundary(self) -> None:
        if self._now:
            self._before, self._now = self._now, ""

    def _write(self, text: str) -> list[BaseModel]:
        apart = text.startswith("\n") or self._last_piece.endswith(PARAGRAPH)
        if self._shown and not self._now and not apart:
            text = PARAGRAPH + text
        self._now = text.removeprefix(FROM_THE_START) if text.startswith(FROM_THE_START) else self._now + text
        self._shown, self._last_piece = True, text
        return [self._chunk(ChoiceDelta(content=text))]

    def _chunk(
        self,
        delta: ChoiceDelta | None,
        finish: Finish | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
        usage: CompletionUsage | None = None,
    ) -> BaseModel:
        choices = [] if delta is None else [ChunkChoice(index=0, delta=delta, finish_reason=finish)]
        more: dict[str, Any] = {} if facts is None else {FIELD: facts}
        if usage is not None:
            more["usage"] = usage
        return ChatCompletionChunk(
            id=self.head.id, object="chat.completion.chunk", created=self.head.created,
            model=self.head.model, choices=choices, **more,
        )  # fmt: skip


def completion_of(head: CompletionHead, result: TurnResult[Any]) -> ChatCompletion:
    """Return the whole completion of a turn that has ended without failing. Its content is the answer alone,
    without text beside tool calls."""
    return _completion(head, answer_of(result), finish_of(result), facts_of_result(result), usage_of(result))


def waiting_completion(head: CompletionHead, pending: Sequence[Pending]) -> ChatCompletion:
    """Return the whole completion of a turn that is suspended."""
    facts = facts_of_wait(head.turn, head.session, pending)
    return _completion(head, words_of_wait(pending), "length", facts, None)


def _completion(
    head: CompletionHead,
    content: str,
    finish: Finish,
    facts: Mapping[str, Any],
    usage: CompletionUsage | None,
) -> ChatCompletion:
    message = ChatCompletionMessage(role="assistant", content=content, refusal=None)
    more: dict[str, Any] = {FIELD: facts}
    return ChatCompletion(
        id=head.id, object="chat.completion", created=head.created, model=head.model,
        choices=[Choice(index=0, message=message, finish_reason=finish, logprobs=None)], usage=usage,
        **more,
    )  # fmt: skip


def answer_of(result: TurnResult[Any]) -> str:
    """Return the text of an answer; of an interrupted turn, the text so far."""
    return result.final_response or ""


def finish_of(result: TurnResult[Any]) -> Finish:
    """Return the wire's finish reason: ``length`` for every incomplete answer that is not refused."""
    if result.turn_exit_reason in REFUSED:
        return "content_filter"
    return "stop" if result.turn_exit_reason.outcome is Outcome.COMPLETED else "length"


def words_of_wait(pending: Sequence[Pending]) -> str:
    """Return the text that replaces the answer of a waiting turn: the wire has only text."""
    waits = ", ".join(f"{one.what} ({one.id})" for one in pending) or "nothing any more"
    return f"[The turn waits for {waits}.]"


def usage_of(result: TurnResult[Any]) -> CompletionUsage | None:
    """Return the tokens of a turn, of all its requests together; ``None`` if they are not known."""
    if not result.usage_known:
        return None
    return CompletionUsage(
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.output_tokens,
        total_tokens=result.total_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=result.cache_read_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=result.reasoning_tokens),
    )
