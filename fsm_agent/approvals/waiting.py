"""Answers that come when nobody waits for them in a process any more: what may be answered, and which stored
answer counts for a call that would run now."""

from __future__ import annotations

import getpass
import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from fsm_agent.approvals.question import Question, rememberable
from fsm_agent.approvals.rules import Pattern
from fsm_agent.conversation.effects import Approval, AskApproval
from fsm_agent.errors import ConfigError
from fsm_agent.runtime.not_yet import NotYet, Waits
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.pending import Pending, PendingItems
from fsm_agent.support.texts import clean

WORDS: dict[Any, Approval] = {
    "once": Approval(True), "session": Approval(True, scope="session"),
    "always": Approval(True, scope="always"), "deny": Approval(False, "the user said no"),
    "never": Approval(False, "the user said never", scope="always"),
}  # fmt: skip
"""Answers to the question whether a call may run, and what they stand for."""
ONCE = ("once", "deny")
"""Those for a call that cannot be remembered."""
SPELLED = {True: "once", "yes": "once", "y": "once", False: "deny", "no": "deny", "n": "deny"}
LATER = "nobody has answered yet"


def somebody() -> str:
    """Who gives an answer, when nothing else is said: the user of this machine."""
    try:
        return f"{getpass.getuser()} on {platform.node()}"
    except (KeyError, OSError):
        return f"somebody on {platform.node()}"


def answer(items: PendingItems, name: str, value: Any, *, pattern: str = "", by: str = "") -> Pending:
    """Answer what waits under this id, or the beginning of one, once; as it is stored then. ``value``: for an
    approval one of its choices, a bool or an ``Approval``, with ``pattern`` for calls like it; for a question
    words, or the number of a choice; for a result whatever the tool might have returned; for a timer nothing,
    or the result of the call. Raises ``ConfigError`` for what is no answer, and for a second one."""
    item = items.find(name)
    if pattern and item.kind != "approval":
        raise ConfigError("only an approval has a pattern", pattern, "an answer to what is asked")
    match item.kind:
        case "approval":
            said: Any = asdict(_approval(item, value, pattern))
        case "question":
            said = _words(item, value)
        case "timer":
            said = item.asked if value in (None, "") else str(value)
        case "result":
            said = to_jsonable_python(value, fallback=str)
    return items.answer(item.id, said, by or somebody())


def _approval(item: Pending, value: Any, pattern: str) -> Approval:
    word = SPELLED.get(value, value) if isinstance(value, str | bool) else None
    given = value if isinstance(value, Approval) else WORDS.get(word)
    if given is None:
        raise ConfigError("an approval cannot be answered so", value, ", ".join(item.choices))
    lasting = given.scope != "once"
    if lasting and "session" not in item.choices:
        raise ConfigError("this call cannot be remembered", value, ", ".join(item.choices))
    if pattern:
        if not lasting:
            raise ConfigError(
                "a pattern is for an answer that is remembered", pattern, "session, always, never"
            )
        if not (named := Pattern.of(pattern)).names(item.tool):
            raise ConfigError("the pattern is for another tool", named.text, f"one of {item.tool}")
        given = Approval(given.granted, given.reason, given.scope, pattern=named.text)
    return given


def _words(item: Pending, value: Any) -> str:
    words = clean(str(value)).strip()
    if not words:
        raise ConfigError(
            "the question is not answered", words, "some words" + " or a number" * bool(item.choices)
        )
    chosen = int(words) if words.isascii() and words.isdigit() else 0
    return item.choices[chosen - 1] if 1 <= chosen <= len(item.choices) else words


@dataclass(slots=True)
class Waiting:
    """What one turn asks people, and what was answered while nobody ran it. ``suspends``: it need not go on
    without an answer. ``resumed``: there may be answers."""

    items: PendingItems
    fence: Fence
    suspends: bool = False
    resumed: bool = False

    def of(self, call: str, kinds: Sequence[Waits], digest: str) -> Pending | None:
        """Return what was asked about this call, when it was about just this."""
        found = self.items.of_call(self.fence.turn_id, call) if self.resumed else ()
        return next((one for one in found if one.kind in kinds and one.digest == digest), None)

    def approval(self, question: AskApproval, workdir: str) -> Approval | None:
        """Return the stored answer to this very question. Who changed what would run asks again."""
        item = self.of(question.call_id, ("approval",), digest_of(question, workdir))
        return None if item is None or item.answered is None else Approval(**item.answer)

    def settled(self, question: AskApproval, said: Approval) -> Approval:
        """An answer was given here, to what is asked elsewhere, too: the one that counts."""
        if not self.resumed or said.interrupted:
            return said
        kept = self.items.settle(self.fence, question.call_id, "approval", asdict(said), somebody())
        return Approval(**kept)

    def put_off(self, question: AskApproval, workdir: str) -> NotYet | None:
        """What stands in the place of the answer, when the turn may be suspended for it."""
        if not self.suspends:
            return None
        return NotYet(
            "approval",
            question.call_id,
            question.name,
            Question.of(question).text(),
            tuple(WORDS) if rememberable(question) else ONCE,
            digest_of(question, workdir),
            otherwise=Approval(False, f"{LATER}, and the question cannot be written down"),
        )


def digest_of(question: AskApproval, workdir: str) -> str:
    """A hash of all that a person is asked about: the call, why it is asked, where it would run."""
    about = [
        question.name, question.arguments, question.pattern, question.origin, question.why, question.where,
        workdir,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
