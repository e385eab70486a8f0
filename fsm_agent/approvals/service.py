"""Decides whether a dangerous call may run, and for how long the decision is remembered.

The first of these that has an answer decides: hard lines (never); a denial in the settings or for good; a
blocking ``before_tool`` callback; a permission in the settings, for good, or for this session; an approving
``before_tool`` callback; a person. Any error denies the call. A call that writes a file which acts
later (``acting_files``) needs a pattern that names the file to be allowed more than once. A call that
stays in a strict enough sandbox (``sandbox.policy``) needs no approval unless a rule requires it; for a
call that leaves its sandbox, approvals of the tool as a whole do not count. For an imported turn no earlier
permission counts (``for_imported``)."""

# A session approval belongs to the session. It is stored with the working directory, survives a restart, and
# does not extend to forks or children.

# The first answer decides. A question is open to the debugger from the moment a person is asked (event
# `approval`), never earlier, so no rule can be bypassed.

from __future__ import annotations

import asyncio
import copy
import functools
import getpass
import hashlib
import json
import logging
import math
import platform
import weakref
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from pydantic_core import to_jsonable_python

from fsm_agent.approvals.acting_files import acts_later
from fsm_agent.approvals.question import Question, rememberable
from fsm_agent.approvals.rules import (
    READ_ONLY,
    Asked,
    Grant,
    Grants,
    Pattern,
    Verdict,
    allows,
    why_not_read_only,
)
from fsm_agent.approvals.shell import hard_line
from fsm_agent.conversation.arguments import signature
from fsm_agent.conversation.effects import Approval, AskApproval, RunTool, ToolSpec
from fsm_agent.errors import ConfigError, StoreError, expect_name
from fsm_agent.request import Effect, NotYet, Waits
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import Finish, Stopwatch, wait_with_deadline
from fsm_agent.runtime.events import ApprovalAsked, StatusText
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.pending import Pending, PendingItems
from fsm_agent.settings import ApprovalSettings as ApprovalSettings
from fsm_agent.support.texts import clean, one_line
from fsm_agent.support.threads import Interrupt, in_daemon_thread
from fsm_agent.tools.decorator import Confinement

WORDS: dict[Any, Approval] = {
    "once": Approval(True), "session": Approval(True, scope="session"),
    "always": Approval(True, scope="always"), "deny": Approval(False, "the user said no"),
    "never": Approval(False, "the user said never", scope="always"),
}  # fmt: skip
"""The answers to an approval question."""
ONCE = ("once", "deny")
"""Answers to a call that cannot be remembered."""
SPELLED = {True: "once", "yes": "once", "y": "once", False: "deny", "no": "deny", "n": "deny"}
LATER = "no answer has come yet"


def user_of_machine() -> str:
    """Return the default author of an answer: the user of this machine."""
    try:
        return f"{getpass.getuser()} on {platform.node()}"
    except (KeyError, OSError):
        return f"a user of {platform.node()}"


def answer(items: PendingItems, name: str, value: Any, *, pattern: str = "", by: str = "") -> Pending:
    """Answer the pending item whose id begins with ``name``, once; return the stored item. ``value``: for
    an approval one of its choices, a bool or an ``Approval``, with ``pattern`` for similar calls; for a
    question a text, or the number of a choice; for a result anything that the tool might have returned; for
    a timer nothing, or the result of the call. Raises ``ConfigError`` for an invalid or second answer."""
    expect_name("the id of what waits", name, "an id that `fsm-agent pending list` shows, or its beginning")
    item = items.find(name)
    if pattern and item.kind != "approval":
        raise ConfigError("only an approval has a pattern", pattern, "an answer to what is asked")
    match item.kind:
        case "approval":
            answer: Any = asdict(_approval(item, value, pattern))
        case "question":
            answer = _words(item, value)
        case "timer":
            answer = item.asked if value in (None, "") else str(value)
        case "result":
            answer = to_jsonable_python(value, fallback=str)
    return items.answer(item.id, answer, by or user_of_machine())


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
    """The questions of one turn, and answers given while it was not running. ``suspends``: the turn can be
    suspended without an answer. ``resumed``: there may be answers."""

    items: PendingItems
    fence: Fence
    suspends: bool = False
    resumed: bool = False

    def of(self, call: str, kinds: Sequence[Waits], digest: str) -> Pending | None:
        """Return the pending item for exactly this call."""
        found = self.items.of_call(self.fence.turn_id, call) if self.resumed else ()
        return next((one for one in found if one.kind in kinds and one.digest == digest), None)

    def approval(self, question: AskApproval, workdir: str) -> Approval | None:
        """Return the stored answer to exactly this question. If what would run has changed, it is asked
        again."""
        item = self.of(question.call_id, ("approval",), digest_of(question, workdir))
        return None if item is None or item.answered is None else Approval(**item.answer)

    def settle(self, question: AskApproval, answer: Approval) -> Approval:
        """Record an answer given here to a question that is also open elsewhere; return the answer that
        counts."""
        if not self.resumed or answer.interrupted:
            return answer
        kept = self.items.settle(self.fence, question.call_id, "approval", asdict(answer), user_of_machine())
        return Approval(**kept)

    def put_off(self, question: AskApproval, workdir: str) -> NotYet | None:
        """Return what replaces the answer when the turn may be suspended for it."""
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
    """Hash everything the question shows: the call, the reason, the place."""
    about = [
        question.name, question.arguments, question.pattern, question.origin, question.why, question.where,
        workdir,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()


log = logging.getLogger(__name__)

NOBODY = "no person is there to approve it"
NO_ANSWER = "the approval callback answered {answer}; allowed: True, False, an Approval, " + ", ".join(
    f'"{word}"' for word in WORDS
)
ALLOWING = "an approval callback, a rule in approval.allow, or --yes on the command line allows it"
CHILD = "a child turn may not ask for approval; leave this to the agent that gave you the task"
HOOK = "before_tool"


class Approvals:
    """Fails closed: no callback, no answer in time, an unknown answer, and an error all deny (APPR-01..09).

    ``rules`` are read once: no tool and no change of the environment affects them later. Raises
    ``ConfigError`` for a malformed pattern."""

    def __init__(
        self,
        callbacks: Callbacks,
        clock: Clock,
        rules: ApprovalSettings,
        poll: float,
        *,
        grants: Grants,
        workdir: str,
    ) -> None:
        self._callbacks, self._hooks, self._clock, self._rules, self._poll = (
            callbacks,
            callbacks,
            clock,
            rules,
            poll,
        )
        self._grants, self._workdir = grants, workdir
        self._allowed = [Pattern.of(text) for text in rules.allow]
        self._denied = [Pattern.of(text) for text in rules.deny]
        self._session: list[Pattern] = []
        self._unasked, self._origin, self._silent = NOBODY, "", False
        self._turnstiles: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )
        self._specs: dict[str, ToolSpec] = {}
        self._imported, self._outside = False, frozenset[str]()
        self._confinements: Mapping[str, Confinement] = {}

    def for_child(
        self, callbacks: Callbacks, origin: str, *, ask: bool, rules: ApprovalSettings | None = None
    ) -> Approvals:
        """Return the approvals of a child turn: the same rules and checks, without the permissions of this
        session. With ``ask`` the same person is asked, one question at a time, and sees the child's task;
        otherwise no question is asked (APPR-05). ``rules``: those of a different agent that runs the turn;
        the stricter of both apply."""
        child = Approvals(
            self._callbacks if ask else callbacks,
            self._clock,
            self._rules if rules is None else self._rules.stricter(rules),
            self._poll,
            grants=self._grants,
            workdir=self._workdir,
        )
        child._origin, child._turnstiles, child._unasked, child._hooks = (
            origin,
            self._turnstiles,
            CHILD,
            self._hooks,
        )
        child._imported, child._silent = self._imported, not ask
        return child

    def for_imported(self) -> Approvals:
        """Return the approvals of an imported turn and its children, whose calls a stranger may have
        written. Everything needs approval except calls that only read here, and earlier permissions do not
        apply. Denials hold, and so do permissions for that turn's session, which were given after the
        import."""
        strict = copy.copy(self)
        strict._imported, strict._specs = True, {}
        return strict

    def looked_at(
        self,
        tools: tuple[ToolSpec, ...],
        outside: Collection[str] = (),
        confinements: Mapping[str, Confinement] = MappingProxyType({}),
    ) -> tuple[ToolSpec, ...]:
        """Return a turn's tools, marked as asking where a rule applies. ``outside``: names of tools that
        reach beyond this machine. ``confinements``: sandboxes by tool name."""
        try:
            denied = [
                *self._denied,
                *(grant.pattern for grant in self._grants.all() if grant.verdict == "deny"),
            ]
        except StoreError:
            denied = [Pattern.of("*")]
        self._specs, self._outside = {tool.name: tool for tool in tools}, frozenset(outside)
        self._confinements = confinements
        return tuple(
            replace(tool, approval="ask") if self._concerns(tool, denied) else tool for tool in tools
        )

    def _concerns(self, tool: ToolSpec, denied: list[Pattern]) -> bool:
        ruled = self._rules.policy.get(tool.name) in ("ask", "deny")
        forbidden = any(pattern.names(tool.name) for pattern in denied)
        return tool.approval == "never" and (ruled or forbidden or self._is_suspect(tool) or _writes(tool))

    def _is_suspect(self, tool: ToolSpec) -> bool:
        """Return whether a tool needs approval because the turn was imported. Fetching a page informs its
        server."""
        return self._imported and (tool.effect != "pure" or tool.name in self._outside)

    async def ask(
        self,
        request: AskApproval,
        interrupted: Interrupt,
        session: str = "",
        waiting: Waiting | None = None,
    ) -> Approval | NotYet:
        """Return the answer to a request, or ``NotYet``. ``session``: where a "session" answer is kept; if
        empty, this agent keeps it. ``waiting``: for a turn that may be suspended; a stored answer to exactly
        this question is used, else a person is asked."""
        call = await in_daemon_thread(
            self._call, request.name, request.arguments
        )  # a long command takes a while
        try:
            why = self._acts(call)
            settled = await self._answer_without_person(call, why, interrupted, session)
            if settled is not None:
                return settled
            question = await in_daemon_thread(self.complete, request, call)
            waiting = None if self._silent else waiting
            stored = None if waiting is None else waiting.approval(question, self._workdir)
        except StoreError as error:
            return Approval(False, f"what was decided before cannot be read: {error}")
        if stored is not None:
            await self.remember(question, stored, session)
            return stored
        later = None if waiting is None else waiting.put_off(question, self._workdir)
        if later is not None and interrupted.is_set():
            return Approval(False, "interrupted", interrupted=True)
        if not self._callbacks.has("approval"):
            return later or self._refuse_unasked(request.name, question.why)
        turnstile = self._turnstiles.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        finish, _ = await self._wait_for(
            turnstile.acquire(), interrupted, limited=False
        )  # the time limit starts when the question is asked
        if finish != "done":
            return Approval(False, "interrupted", interrupted=True)
        try:
            finish, answer = await self._wait_for(self._person(question, session, waiting), interrupted)
        finally:
            turnstile.release()
        if finish == "late" and later is not None:
            return later
        if not isinstance(answer, Approval):
            late = f"no answer within {self._rules.timeout:.0f} s"
            return Approval(
                False, late if finish == "late" else "interrupted", interrupted=finish == "interrupted"
            )
        return answer

    def _refuse_unasked(self, tool: str, why: str) -> Approval:
        """Refuse a call when there is no one to ask."""
        if self._unasked == NOBODY:
            self._callbacks.publish(StatusText(f"{tool} was not run: {NOBODY}; {ALLOWING}"))
        return Approval(False, f"{self._unasked}; it is asked because {why}" if why else self._unasked)

    async def _answer_without_person(
        self, call: Asked, why: str, interrupted: Interrupt, session: str
    ) -> Approval | None:
        """Return an answer that needs no person. ``why``: see ``_acts``."""
        never = functools.partial(hard_line, call.command or "", directory=self._workdir)
        if call.command is not None and (reason := await in_daemon_thread(never)):
            return Approval(False, f"this can never be approved: {reason}")
        remembered, policy = self._grants_of(session), self._rules.policy.get(call.tool)
        denied = [*self._denied, *(grant.pattern for grant in remembered if grant.verdict == "deny")]
        if policy == "deny" or any(pattern.forbids(call, self._workdir) for pattern in denied):
            return Approval(False, "it is forbidden")
        answer = await self._hook(call.tool, call.arguments, interrupted)
        if answer is not None and not answer.granted:
            return answer
        confinement = self._confinements.get(call.tool)
        leaves = confinement is not None and confinement.left_by(call.arguments)
        if not self._imported and (self._rules.bypass or (policy == "allow" and not leaves)):
            return Approval(True, "allowed by the settings")
        allowing = [one for one in self._allowing(remembered) if one.exact or not (why or leaves)]
        if await in_daemon_thread(allows, allowing, call, self._workdir):  # reads the folder
            return Approval(True, "approved before", "session")
        walled = confinement is not None and confinement.frees(call.arguments)
        if walled and not self._imported and policy != "ask":
            return Approval(True, "it stays in the sandbox")
        return self._own(call.tool, why) if answer is None else answer

    def _allowing(self, remembered: list[Grant]) -> list[Pattern]:
        given = [grant for grant in remembered if grant.verdict == "allow"]
        if self._imported:
            return [grant.pattern for grant in given if grant.session]
        return [*self._allowed, *(grant.pattern for grant in given), *self._session]

    def _grants_of(self, session: str) -> list[Grant]:
        return [*self._grants.all(), *(self._grants.of_session(session, self._workdir) if session else ())]

    def _own(self, tool: str, why: str) -> Approval | None:
        """Allow a call of a tool that is checked only for its calls on sensitive files, if this is not
        one."""
        spec = self._specs.get(tool)
        ruled = self._rules.policy.get(tool) == "ask"
        free = spec is not None and spec.approval == "never" and not (ruled or why or self._is_suspect(spec))
        return Approval(True, "not forbidden") if free else None

    def complete(self, request: AskApproval, call: Asked | None = None) -> AskApproval:
        """Complete the question: the pattern to remember, the delegated task, the reason, and the sandbox."""
        call = call or self._call(request.name, request.arguments)
        confinement = self._confinements.get(call.tool)
        where = "" if confinement is None else confinement.where(call.arguments)
        pattern, why = call.exactly if call.rememberable else "", self._why(call)
        return replace(request, pattern=pattern, origin=self._origin, why=why, where=where)

    async def _person(self, question: AskApproval, session: str, waiting: Waiting | None) -> Approval:
        self._callbacks.publish(ApprovalAsked(question))
        answer = await self._callbacks.ask("approval", question)
        if (approval := read_answer(answer)) is None:
            reason = NO_ANSWER.format(answer=one_line(repr(answer), 80))
            self._callbacks.publish(StatusText(f"{question.name} was not run: {reason}"))
            approval = Approval(False, reason)
        if waiting is not None and waiting.resumed:
            approval = await in_daemon_thread(waiting.settle, question, approval)
        await self.remember(question, approval, session)
        return approval

    async def remember(self, question: AskApproval, approval: Approval, session: str) -> None:
        """Keep an answer for its scope, under its own pattern or that of the question; a call that cannot
        be remembered is allowed once. If storing fails, this agent keeps the answer."""
        if approval.scope == "once":
            return
        call = await in_daemon_thread(self._call, question.name, question.arguments)
        named = replace(question, pattern=call.exactly)
        if (approval.granted and not call.rememberable) or not (approval.pattern or rememberable(named)):
            return
        pattern = Pattern.of(approval.pattern or named.pattern)
        verdict: Verdict = "allow" if approval.granted else "deny"
        try:
            if approval.scope == "always":
                await in_daemon_thread(self._grants.add, pattern.text, verdict)
                return
            if session:
                await in_daemon_thread(self._grants.add_for, session, self._workdir, pattern.text, verdict)
                return
        except StoreError as error:
            log.warning("an answer could not be stored: %s", error)
        if approval.granted:
            self._session.append(pattern)

    async def before(self, name: str, arguments: Mapping[str, Any], interrupted: Interrupt) -> str:
        """Return why a ``before_tool`` callback blocks a call that needs no approval, if any."""
        answer = await self._hook(name, arguments, interrupted)
        return answer.reason if answer is not None and not answer.granted else ""

    async def _hook(self, name: str, arguments: Mapping[str, Any], interrupted: Interrupt) -> Approval | None:
        """Return the callback's answer; one that fails blocks calls with side effects (APPR-09)."""
        if not self._hooks.has(HOOK):
            return None
        try:
            finish, answer = await self._wait_for(
                self._hooks.demand(HOOK, name, dict(arguments)), interrupted
            )
            if finish == "interrupted":
                return Approval(False, "interrupted", interrupted=True)
            return _read_hook(answer if finish == "done" else "late")
        except Exception as error:
            spec = self._specs.get(name)
            effect: Effect = "unsafe" if spec is None else spec.effect
            log.warning("before_tool failed for %s", name, exc_info=True)
            return (
                None
                if effect == "pure"
                else Approval(False, f"the check before it failed ({type(error).__name__})")
            )

    def _why(self, call: Asked) -> str:
        """Return why the call needs approval, as shown to a person; usually empty."""
        if why := self._acts(call):
            return why
        try:
            remembered = self._grants_of("")
        except StoreError:
            remembered = []
        readers = any(one.what == READ_ONLY and one.names(call.tool) for one in self._allowing(remembered))
        return why_not_read_only(call, self._workdir) if readers and call.command is not None else ""

    def _acts(self, call: Asked) -> str:
        """Return why the call needs approval even if its tool does not; usually empty."""
        spec = self._specs.get(call.tool)
        if spec is None or not _writes(spec):
            return ""
        found = (acts_later(path, self._workdir) for path in call.given)
        return next((why for why in found if why), "")

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Asked:
        spec = self._specs.get(name)
        try:
            return Asked.of(name, arguments, spec.path_arguments if spec is not None else (), self._workdir)
        except ValueError:  # no file has such a name, so no pattern of paths matches it
            return Asked.of(name, arguments, (), self._workdir)

    async def _wait_for(
        self, work: Coroutine[Any, Any, Any], interrupted: Interrupt, *, limited: bool = True
    ) -> tuple[Finish, Any]:
        """Return (how it ended, result); stop the work on timeout or interrupt."""
        task, watch = asyncio.ensure_future(work), Stopwatch(self._clock)
        limit = self._rules.timeout if limited else math.inf
        try:
            finish = await wait_with_deadline(
                task, left=lambda: limit - watch.elapsed(), interrupted=interrupted, poll=self._poll
            )
            return finish, task.result() if finish == "done" else None
        finally:
            if not task.done():
                task.cancel()


def _writes(tool: ToolSpec) -> bool:
    return tool.effect != "pure" and bool(tool.path_arguments)


def read_answer(answer: Any) -> Approval | None:
    """Read a callback's answer: True, "once", "session" or "always" grant, False, "deny" and "never"
    refuse; ``None`` for anything else, which approves nothing."""
    if isinstance(answer, Approval):
        return answer
    return WORDS.get(SPELLED.get(answer, answer)) if isinstance(answer, str | bool) else None


def _read_hook(answer: Any) -> Approval | None:
    """``None`` means no opinion; an unknown answer blocks."""
    match answer:
        case None:
            return None
        case "approve":
            return Approval(True, "approved by a check")
        case "block" | False:
            return Approval(False, "blocked by a check")
        case ("block", why):
            return Approval(False, f"blocked by a check: {why}")
        case "late":
            return Approval(False, "the check before it took too long")
    given = f"the callback before_tool answered {one_line(repr(answer), 80)}"
    return Approval(False, f'{given}; allowed: None, "approve", "block", ("block", why)')


# ----------------------------------------------------------------------------------------------------
# What a turn may run without being asked again.


class Admission:
    """The calls of one turn that may run: those of tools that need no approval, and those approved while
    this process ran the turn; each approval admits one call. Kept in memory only, so that stored data
    cannot add a call."""

    def __init__(self) -> None:
        self._free: frozenset[str] = frozenset()
        self._granted = Counter[tuple[str, str]]()

    def open(self, tools: Iterable[ToolSpec]) -> None:
        """Take the turn's tools, as marked by the rules."""
        self._free = frozenset(tool.name for tool in tools if tool.approval == "never")

    def free(self, name: str) -> bool:
        """Return whether calls of this tool need no approval."""
        return name in self._free

    def remember(self, request: AskApproval, answer: Approval) -> None:
        """Remember a person's answer; an approval applies to this call with these arguments."""
        if answer.granted:
            self._granted[_call(request)] += 1

    def admits(self, request: RunTool) -> bool:
        """Return whether the call may run: its tool needs no approval, or a person approved it in this
        process, which this call uses up."""
        if self.free(request.name):
            return True
        granted, call = self._granted, _call(request)
        if not granted[call]:
            return False
        granted[call] -= 1
        return True


def _call(request: Any) -> tuple[str, str]:
    return request.call_id, signature(request.name, request.arguments)
