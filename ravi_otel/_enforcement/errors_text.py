"""Turn a refusal into the error its reader needs: one sentence, and the same as fields."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from zoneinfo import ZoneInfo

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.judge import Denied
from ravi_otel.errors import (
    BUSY,
    TOO_LATE,
    UNCHECKED,
    AgentPausedError,
    BudgetContendedError,
    BudgetError,
    BudgetExhaustedError,
    CancellationError,
    DeadlineExceededError,
    SpawnDeniedError,
)
from ravi_otel.policy._limits import (
    ALL,
    CLOCKS,
    NANO,
    SPENDS,
    Kind,
    Limit,
    ScopeKind,
    format_limit,
    format_public_amount,
    is_calendar,
    public_amount,
    same_window,
)
from ravi_otel.policy._limits import format_amount as shown
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call

if TYPE_CHECKING:
    from ravi_otel.hooks._events import LimitEvent
    from ravi_otel.policy._runs import Priority

_ATTRIBUTE: Final = "_ravi_owner"
_FOR_GOOD: Final = frozenset({"exhausted", "draining", "deadline"})
ErrorT = TypeVar("ErrorT", bound=BudgetError)

_WIDE: Final = 80
"""Characters of a name that are shown: as wide as a line."""

_MOST_RATIO: Final = 1e9

_TYPED: Final = re.compile(r"[A-Za-z0-9_.:@/-]{1,80}")
"""Names that a command line takes as they are."""
MILLI: Final = NANO // 1_000
_HANDLES: Final = frozenset({ScopeKind.RUN, ScopeKind.AGENT, ScopeKind.HANDOFF})
_SHARED: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT, ScopeKind.PROCESS})
"""Scopes that are joined: a limit declared on them again may have lowered the first."""

_SHORTAGES: Final = {
    "full": "",
    "none_below": ", and none that may be paused for it has a priority below {priority}",
    "preemption_off": ", and SpawnBudget.allow_preempt=False has none paused for one of priority {priority}",
}
"""Why there is no slot, by the reason on the error."""

_NOUNS: Final = {
    Kind.TOKENS: "token",
    Kind.INPUT_TOKENS: "input token",
    Kind.OUTPUT_TOKENS: "output token",
    Kind.REQUESTS: "request",
    Kind.TURNS: "turn",
    Kind.MESSAGES: "message",
    Kind.TOOL_CALLS: "tool call",
}
"""What is counted, in the singular; of other kinds the amount says it itself, or the kind's own name does."""

_TODAY: Final = {"minute": "this minute", "hour": "this hour", "day": "today", "week": "this week", "month": "this month"}
"""What a window of the calendar is to an end user."""

_OF_SCOPE: Final = {ScopeKind.SESSION: "this conversation", ScopeKind.RUN: "this task", ScopeKind.AGENT: "this task"}
"""What a scope is to an end user, where its limit has no window."""

_FOR_USERS: Final = {
    "contended": BUSY,
    "deadline": TOO_LATE,
    "closed": "This was ended, and takes no further requests.",
    "store_failed": UNCHECKED,
    "store_lost": UNCHECKED,
    "unpriced_model": "This request cannot be accepted under the usage limit in force.",
    "unbounded_input": "This request cannot be accepted under the usage limit in force.",
    "wrapping_up": "The usage limit for this task is reached, and it is about to end.",
}
"""What an end user may read, by the reason, where it says neither what the limit is nor when there is room again."""

_UNBOUNDED: Final = {
    "uncapped": ("the output of {what} cannot be capped", "Let it pass as an estimate {admit}"),
    "window": (
        "{what} hides the size of the input, and the context window of model {model} is not known",
        "Leave the field out, or let it pass as an estimate {admit}",
    ),
    "refuse": (
        "{what} in the request hides the size of its input",
        'Leave the field out, or hold the model\'s whole window {window}; "admit" in place of "window" holds an estimate',
    ),
}
"""Why the size of a request cannot be told, and what to do about it, by what a strict limit does with such a call."""

_OF_AGENTS: Final = {
    Kind.AGENTS: BUSY,
    Kind.AGENTS_TOTAL: "This task has grown as large as it may, so a part of it was not done.",
    Kind.FAN_OUT: BUSY,
    Kind.DEPTH: "This task has grown as large as it may, so a part of it was not done.",
}
"""The same for limits of agents, whatever the reason."""

_REACHED: Final = "The usage limit for {} is reached."
_OF_TRACKER: Final = {
    Kind.TOKENS: ("Token", "max_tokens"),
    Kind.COST: ("Cost", "max_cost_usd"),
    Kind.TURNS: ("Turn", "max_turns"),
}
"""What an ExecutionTracker calls what it counts, and the parameter that allows more of it."""

_MINUTE: Final = timedelta(minutes=1)


def named(name: str) -> str:
    """Quote a name that came from outside, with nothing in it that moves a cursor, and short."""
    shown = repr(name if len(name) <= _WIDE else f"{name[: _WIDE - 3]}...")
    return shown if len(shown) <= _WIDE + 2 else f"{shown[: _WIDE - 2]}...{shown[0]}"  # one that has to be escaped throughout


def place(facts: ScopeFacts) -> str:
    """Say where: `agent 'researcher' of run 'triage'`."""
    if facts.agent_name and facts.kind == "agent":
        run = facts.run_name or facts.run_id
        return f"agent {named(facts.agent_name)}" + (f" of run {named(run)}" if run else "")
    if facts.kind == "process":
        return "this process" if facts.name is None else f"service {named(facts.name)}"
    name = facts.name or (facts.run_id if facts.kind == "run" else None)
    return f"{facts.kind} {named(name)}" if name else f"this {facts.kind}"


def owned(error: ErrorT, account: Account) -> ErrorT:
    """Write on the error which scope's limit it is, and the limit; gone when it crosses a process.

    A refusal for good is noted on the account as well: whoever swallows it has not made a success of it. A run may do without an agent.
    """
    setattr(error, _ATTRIBUTE, (account.facts.scope_id, account.limit))
    if error.reason in _FOR_GOOD and not isinstance(error, SpawnDeniedError):
        account.refused_at = account.value
    return error


def limit_of(error: BaseException | None) -> Limit | None:
    """Return the limit that raised `error`, None for what no limit raised."""
    owner = getattr(error, _ATTRIBUTE, None) if isinstance(error, BudgetError) else None
    return None if owner is None else owner[1]


def belongs_to(scope_id: str, error: BaseException | None) -> bool:
    """Whether this scope set the limit that raised `error`."""
    owner = getattr(error, _ATTRIBUTE, None) if isinstance(error, BudgetError) else None
    return owner is not None and owner[0] == scope_id


class LimitErrors:
    """Write the errors of one limit: a sentence each, the same as fields, and whose limit it is; what it says besides is here, too."""

    def __init__(self, account: Account) -> None:
        self.account = account

    def value(self) -> str:
        """Write a limit's value for people; a time below a second as one writes it, `300ms`."""
        kind, value = self.account.limit.kind, self.account.value
        return f"{value / MILLI:g}ms" if kind in CLOCKS and 0 < value < NANO else shown(kind, value)

    def spent(self, used: int) -> str:
        """Return how much of it is used: `2 of 2 requests used`, `$0.004978 of $0.005 used`."""
        return f"{shown(self.account.limit.kind, used)} of {self.amount(self.account.value)} used"

    def amount(self, amount: int) -> str:
        """Return an amount with what is counted: `2 requests`, `$0.005`."""
        counted = self.counted(amount)
        return f"{shown(self.account.limit.kind, amount)} {counted}" if counted else shown(self.account.limit.kind, amount)

    def counted(self, amount: int = 0) -> str:
        """Name what is counted: `tokens`, `tokens (uncached)`, `calls of tool 'search'`; nothing for dollars and seconds."""
        limit, many = self.account.limit, "" if amount == 1 else "s"
        if limit.detail is not None:
            return f"call{many} of tool {named(limit.detail)}"
        if limit.kind in Kind.__members__.values():
            noun = _NOUNS.get(Kind(limit.kind))
            plain = "" if noun is None else f"{noun}{many}"
            return plain if limit.count == ALL else f"{plain} ({limit.count})"
        return limit.kind if _TYPED.fullmatch(limit.kind) else named(limit.kind)

    def window(self) -> str:
        """Say of which window it is the limit, and for whom."""
        limit, words = self.account.limit, ""
        if limit.per is not None:
            words = f", {limit.per} {self.account.window} in {limit.tz}" if self.account.window else f", in {limit.per}"
        if limit.by is not None:
            words += f", {_whom(limit.by, self.account.counted_for)}"
        return words

    def way_out(self) -> str:
        """Return the sentence that says how to allow more: where the limit is written, or the command that raises it for all."""
        if self.account.named_store and self.account.epoch is not None and self.account.facts.kind in _SHARED:
            return f"All that count in this ledger are held to {self.in_force()}: raise it by `{self._command()}`, for example."
        if self.account.value != self.account.limit.value:
            return f"Raise {self.in_force()}."
        instead = next((words for begins, words in _INSTEAD.items() if self.account.origin.startswith(begins)), "leave it out")
        return f"Raise {self.account.origin} or {instead}."

    def _command(self) -> str:
        """Write how to raise a limit that others count in too: what a program states of it only ever makes it smaller."""
        facts, limit = self.account.facts, self.account.limit
        own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id}.get(facts.kind) or facts.scope_id
        if not _TYPED.fullmatch(own):
            return "ravi-otel ledger set-limit"
        more = limit.value if limit.value > self.account.value else 2 * self.account.value or 1
        plain = Limit(
            kind=limit.kind,
            value=more,
            detail=limit.detail,
            agent=limit.agent,
            count=limit.count,
            per=same_window(limit.per),
            tz=limit.tz,
            by=limit.by,
        )
        return f"ravi-otel ledger set-limit {facts.kind}:{own} {quote(format_limit(plain))}"

    def in_force(self) -> str:
        """Name the limit as its user wrote it, or what it is by now."""
        if self.account.value == self.account.limit.value:
            return self.account.origin
        since = "in force now" if self.account.facts.kind in _SHARED else "set by set_limit()"
        return f"{format_limit(replace(self.account.limit, value=self.account.value))} ({since}, instead of {self.account.origin})"

    def stated(self, option: str, value: str) -> str:
        """Write where an option of a limit is stated: where the limit was, or beside what takes none, a budget or a share."""
        if self.account.origin.startswith("Execution"):
            stated: dict[str, Any] = {"value": self.account.value, option: value}
            return f"with limits=[{format_limit(replace(self.account.limit, **stated))!r}] in place of {self.account.origin}"
        where = f"the limit that {self.account.origin} is a part of" if self.account.origin.startswith("agent(share") else self.in_force()
        return f'with {option}="{value}", which is :{option.removeprefix("on_")}={value} in words, on {where}'

    def fields(self, used: int, held: int, reason: str, needed: int | None = None) -> dict[str, Any]:
        """Fill in what an error knows besides its sentence; `needed` is how much has to fit again, None where waiting does not help."""
        facts, kind = self.account.facts, self.account.limit.kind
        again = None if needed is None else self.account.resets_at(needed)
        return {
            "limit_kind": self.account.kind,
            "threshold": public_amount(kind, self.account.value),
            "used": public_amount(kind, used),
            "held": public_amount(kind, held),
            "remaining": public_amount(kind, self.account.value - used - held),
            "scope": str(facts.kind),
            "agent_name": facts.agent_name,
            "run_name": facts.run_name,
            "run_id": facts.run_id,
            "reason": reason,
            "resets_at": again,
            "per": self.account.limit.per,
            "counted_for": self._whose(),
            "public_message": self.public_message(reason, again),
        }

    def public_message(self, reason: str, again: datetime | None) -> str:
        """Write the sentence that an end user may read: what it means to them, and when to try again, if `again` says so."""
        account, limit = self.account, self.account.limit
        if reason in _FOR_USERS:
            return _FOR_USERS[reason]
        if limit.kind in _OF_AGENTS:
            return _OF_AGENTS[Kind(limit.kind)]
        later = "" if again is None else f" after {_moment(again, limit)}"
        if reason == "too_large":
            return f"Too little is left of the usage limit for this request. Please try a smaller one{later and f', or try again{later}'}."
        if account.nature is Nature.LEVEL:
            return "This conversation is as long as it may be. Please begin another one."
        whose = _TODAY.get(limit.per or "") or ("" if limit.per or limit.by else _OF_SCOPE.get(account.facts.kind, ""))
        reached = _REACHED.format(whose) if whose else "The usage limit is reached."
        return f"{reached} Please try again{later}." if later else reached

    def _whose(self) -> str | None:
        """Return whose counter it is: of a limit that counts by something its value, else of the tenant or session that has it."""
        facts, limit = self.account.facts, self.account.limit
        if limit.by is not None:
            return None if self.account.counted_for is None else _whom(limit.by, self.account.counted_for)
        own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id}.get(facts.kind)
        return None if own is None else f"{facts.kind} {named(own)}"

    def no_share(self, asking: ScopeFacts, amount: int, reason: str, *, more: bool = False) -> BudgetError:
        """Write the error of a part that is not left to be carved out for an agent, or of `more` for one that it has."""
        kind = self.account.limit.kind
        rest = max(0, self.account.value - self.account.used - self.account.held)
        fact = f"{shown(kind, rest)} of {self.amount(self.account.value)} left in {place(self.account.facts)}"
        asked = f"{place(asking)} asks for {shown(kind, amount)} {'more ' if more else ''}as its share, which"
        fields = self.fields(self.account.used, self.account.held, reason, amount)
        if reason == "contended":
            promised = self.account.promised()
            why = f", {shown(kind, promised)} of them promised to agents with a weighted share" if promised else ", and others hold theirs"
            return BudgetContendedError(
                f"{fact}{why}; {asked} is refused for now. Wait for one of them to close, ask for less, or raise {self.in_force()}.",
                **fields,
            )
        return BudgetExhaustedError(f"{fact}; {asked} is refused. Ask for less, or raise {self.in_force()}.", **fields)

    def used_up(self) -> BudgetExhaustedError:
        """Write the error of a limit with nothing left, for a message that asks for no amount of it."""
        fact = f"{self.spent(self.account.used)} in {place(self.account.facts)}{self.window()}"
        return BudgetExhaustedError(
            f"{fact}, so nothing more is sent to a model. {self.way_out()}",
            **self.fields(self.account.used, self.account.held, "exhausted", 1),
        )

    def unpriced(self, provider: str, model: str | None) -> BudgetExhaustedError:
        """Write the error of a cost limit that meets a model without a price."""
        what = "A call without a model" if model is None else f"Model {named(model)}"
        return BudgetExhaustedError(
            f"{what} of provider {named(provider)} has no known price, so the cost limit of {place(self.account.facts)} cannot be kept and "
            "the call is refused. Give it a price with instrument(prices=...) or under [prices] in a policy file, or let it pass "
            f"{self.stated('on_unpriced', 'warn')}.",
            **self.fields(self.account.used, self.account.held, "unpriced_model"),
        )

    def unbounded(self, call: Call) -> BudgetExhaustedError:
        """Write the error of a strict limit that meets a request whose size cannot be told."""
        why, way_out = _UNBOUNDED[self.account.limit.on_unbounded if call.least_cap else "uncapped"]
        admit, window = self.stated("on_unbounded", "admit"), self.stated("on_unbounded", "window")
        because = why.format(what=call.unbounded, model=named(str(call.model)))
        return BudgetExhaustedError(
            f"The call is refused, because {because} and the strict limit of {self.counted() or 'cost'} of {place(self.account.facts)} "
            f"cannot be kept. {way_out.format(admit=admit, window=window)}.",
            **self.fields(self.account.used, self.account.held, "unbounded_input"),
        )

    def cut_short(self, cap: int, partial: str | None) -> BudgetExhaustedError:
        """Write the error of an answer that ended at the cap a strict limit put on it, so that the client could not read it."""
        fact = f"{self.spent(self.account.used)} in {place(self.account.facts)}{self.window()}"
        return BudgetExhaustedError(
            f"{fact}, which left room for {cap} output tokens, and the answer ended there unfinished. {self.way_out()}",
            **self.fields(self.account.used, self.account.held, "truncated", 1),
            partial=partial,
        )

    def cut(self, reason: str, used: int, held: int, *, counted: bool) -> BudgetError:
        """Write the error of a stream that was cut: `used` with what came of it, `counted` by us, and `held` by other calls."""
        kind = self.account.limit.kind
        fact = f"{self.spent(used)} in {place(self.account.facts)}{self.window()}{', by our count' if counted else ''}"
        fields = self.fields(used, held, reason, 1)
        fields["estimated"] = counted
        others = f", and {shown(kind, held)} held by other calls" if held > 0 else ""
        if reason == "contended":
            return BudgetContendedError(
                f"{fact}{others}, so the stream was cut. Lower the concurrency, or raise {self.in_force()}.", **fields
            )
        if used > self.account.value:
            past = f"{shown(kind, used)} > {shown(kind, self.account.value)}"
            return BudgetExhaustedError(f"{fact}, so the stream was cut ({past}). {self.way_out()}", **fields)
        return BudgetExhaustedError(f"{fact}{others}, so the stream was cut. {self.way_out()}", **fields)

    def late(self) -> DeadlineExceededError:
        """Write the error of a deadline."""
        of = " of working time" if self.account.limit.kind == Kind.WORKING else ""
        return DeadlineExceededError(
            f"{shown(self.account.limit.kind, self.account.used)} of {self.value()}{of} used in {place(self.account.facts)}, so the "
            f"work is stopped (deadline exceeded). {self.way_out()}",
            **self.fields(self.account.used, 0, "deadline"),
        )

    def wrapped(self) -> BudgetExhaustedError:
        """Write the error of a second last call."""
        return BudgetExhaustedError(
            f"{place(self.account.facts)} has made its last call already, and keeps nothing back for another. End here, or raise "
            f"{self.in_force()}.",
            **self.fields(self.account.used, self.account.held, "wrapping_up"),
        )

    def wrapping_up(self, tool: str) -> BudgetExhaustedError:
        """Write the error of a tool in the block of the last call."""
        return BudgetExhaustedError(
            f"tool {named(tool)} is not run while {place(self.account.facts)} wraps up: answer with what is there, or end here.",
            **self.fields(self.account.used, self.account.held, "wrapping_up"),
        )


class RefusalErrors(LimitErrors):
    """Write the error of one refusal of a ledger."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.account)
        self.denied = denied

    def exhausted(self, fact: str, where: str, agent: ScopeFacts | None) -> str:
        """Return the error of what does not fit whoever ends: `fact` says what is used."""
        kind, reason = self.account.limit.kind, self.denied.reason
        if reason == "draining" and not self.account.value and self.account.limit.value:
            what, opened = self.counted() or "cost", "`ravi-otel ledger set-limit` opens it again"
            return f"An operator has closed the limit of {what} in {where}, so nothing more may be spent there; {opened}."
        if self.account.nature is Nature.LEVEL:
            return f"{self._too_high(where, agent)}. {self.way_out()}"
        if reason == "too_large":
            this, less = ("this call", "Send") if kind in SPENDS else ("this", "Charge")
            least = f"{this} needs at least {shown(kind, self.denied.minimum)} more, which does not fit ({self._past()})"
            return f"{fact}{self._kept()}; {least}. {less} less, or raise {self.in_force()}."
        if reason == "draining" and self.denied.used <= self.account.value:
            return f"{fact}, and a call that did not fit was refused before, so nothing more is sent. {self.way_out()}"
        return f"{fact}{self._kept()}; {self._what_is_refused()} ({self._past()}). {self.way_out()}"

    def contended(self, fact: str) -> str:
        """Return the error of what would fit if others ended, and did not in time: `fact` says what is used."""
        kind = self.account.limit.kind
        stands = [f"{shown(kind, self.denied.held)} held by calls in flight"] if self.denied.held or not self.account.claims else []
        if self.account.claims:
            stands.append(f"{shown(kind, self.account.promised())} promised to agents with a weighted share")
        least = shown(kind, self.denied.minimum)
        return (
            f"{fact}, {' and '.join(stands)}; this call needs at least {least} more, and too little came free in time. "
            f"Lower the concurrency, or raise {self.in_force()}."
        )

    def _too_high(self, where: str, agent: ScopeFacts | None) -> str:
        """Return what of a height was passed: how long a conversation is, or how deep agents are in agents."""
        least, most = self.denied.minimum, self.account.value
        if self.account.limit.kind == Kind.DEPTH:
            who = "an agent" if agent is None else f"agent {named(str(agent.agent_id))}"
            return f"Agents go {most} deep in {where}; {who} would be {least} deep and is refused ({least} > {most})"
        allowed = f"{self.amount(most)} {'is' if most == 1 else 'are'} allowed in {where}"
        return f"{allowed}; this call makes it {least} and is refused ({least} > {most})"

    def _what_is_refused(self) -> str:
        kind = self.account.limit.kind
        if self.denied.used > self.account.value or not self.denied.minimum:
            return "this call is refused"
        if kind in SPENDS:
            return f"this call needs at least {shown(kind, self.denied.minimum)} more and is refused"
        return "this one is refused" if self.denied.minimum == 1 else f"{shown(kind, self.denied.minimum)} more are refused"

    def _past(self) -> str:
        """Write the arithmetic: `2 + 1 > 2`."""
        kind = self.account.limit.kind
        if self.denied.used > self.account.value or not self.denied.minimum:
            return f"{shown(kind, self.denied.used)} > {shown(kind, self.account.value)}"
        return (
            f"{shown(kind, self.denied.used)} + {shown(kind, self.denied.minimum)} > {shown(kind, self.account.value - self._kept_back())}"
        )

    def _kept_back(self) -> int:
        """Return what is kept back for the last call, where that is why there is no room."""
        return 0 if self.denied.used + self.denied.minimum > self.account.value else self.account.kept_back

    def _kept(self) -> str:
        kept = self._kept_back()
        if not kept:
            return ""
        kind, handle = self.account.limit.kind, self.account.facts.kind if self.account.facts.kind in _HANDLES else "current_scope()"
        verb = "is" if kept == 1 or kind == Kind.COST else "are"
        return f", and {shown(kind, kept)} {verb} kept back for {handle}.wrap_up()"

    def refused(self, agent: ScopeFacts | None = None) -> BudgetError:
        """Write the error of a ledger's refusal; `agent` is who was not let in, where that is what was refused."""
        denied, where = self.denied, f"{place(self.account.facts)}{self.window()}"
        fact = f"{self.spent(denied.used)} in {where}"
        fields = self.fields(denied.used, denied.held, denied.reason, denied.minimum)
        if denied.reason == "contended":
            return BudgetContendedError(self.contended(fact), **fields)
        return BudgetExhaustedError(self.exhausted(fact, where, agent), **fields)

    def no_room(self, asking: ScopeFacts, parent: ScopeFacts | None) -> SpawnDeniedError:
        """Write the error of an agent that is one too many in all, or under its parent agent."""
        account, most = self.account, self.account.value
        if account.limit.kind == Kind.FAN_OUT:
            above = "its parent agent" if parent is None else place(parent)
            there = f"{self.denied.minimum - 1} of {most} agents live under {above}"
            way_out = f"{self.way_out().removesuffix('.')}, or end one of them first."
        else:
            whose = f" of name {named(account.limit.agent)}" if account.limit.agent else ""
            first = ", the first one included" if account.facts.kind is ScopeKind.RUN and not whose else ""
            there = f"{self.denied.used} of {most} agents{whose} were entered in {place(account.facts)}{first}"
            way_out = self.way_out()
        return SpawnDeniedError(
            f"No room for agent {named(str(asking.agent_id))}: {there}. {way_out}",
            agent_id=asking.agent_id,
            max_agents=most,
            **self.fields(self.denied.used, self.denied.held, "exhausted"),
        )


def _whom(by: str, counted_for: str | None) -> str:
    """Return whose part it is, by what is counted: `user 'ann'`, `calls without a user`."""
    what = by if _TYPED.fullmatch(by) else named(by)
    return f"calls without a {what}" if counted_for is None else f"{what} {named(counted_for)}"


@dataclass(frozen=True, slots=True)
class NoSlot:
    """Who asked for a slot and got none, why, and what to do about it; `way_out` has a place for what allows `most` agents."""

    agent_id: str
    priority: Priority
    most: int
    shortage: Literal["full", "none_below", "preemption_off"]
    way_out: str
    waited: str = ""


def no_slot(asking: NoSlot, account: Account | None, run_id: str | None) -> SpawnDeniedError:
    """Write the error of an agent for which there is no slot; `account` is the limit that says so, None of slots that no run has."""
    most, reason = asking.most, asking.shortage
    if account is None:
        where, origin, fields = "", "SpawnBudget.max_agents", {"used": most, "remaining": 0, "run_id": run_id, "reason": reason}
    else:
        words = LimitErrors(account)
        where, origin, fields = f" in {place(account.facts)}", words.in_force(), words.fields(most, 0, reason)
    why = _SHORTAGES[reason].format(priority=asking.priority.name)
    return SpawnDeniedError(
        f"No slot for agent {named(asking.agent_id)}{asking.waited}: {most} of {most} agents are live{where}, its root included{why}. "
        f"{asking.way_out.format(origin)}",
        agent_id=asking.agent_id,
        max_agents=most,
        **fields,
    )


def closed(facts: ScopeFacts) -> BudgetExhaustedError:
    """Write the error of work in a scope that was closed for good."""
    return BudgetExhaustedError(
        f"{place(facts)} was closed. Open another one.",
        scope=str(facts.kind),
        run_id=facts.run_id,
        reason="closed",
        public_message=_FOR_USERS["closed"],
    )


def parameter_of(kind: str) -> str:
    """Name what allows more of a kind in an ExecutionBudget and its tracker: `max_tokens`."""
    return _OF_TRACKER[Kind(kind)][1]


def consumed(kind: str, used: int, limit: int, bound: ScopeFacts | None) -> BudgetExhaustedError:
    """Write the error of an ExecutionTracker that was given more than its budget; programs know how it begins."""
    title, field = _OF_TRACKER[Kind(kind)]
    where = "" if bound is None else f" in {place(bound)}"
    return BudgetExhaustedError(
        f"{title} budget exceeded: {shown(kind, used)} > {shown(kind, limit)}{where}. Raise ExecutionTracker({field}=…) or pass None.",
        limit_kind=str(kind),
        threshold=public_amount(kind, limit),
        used=public_amount(kind, used),
        remaining=0,
        reason="exhausted",
        public_message=_REACHED.format("this task"),
    )


def cancelled(owner: ScopeFacts, reason: str | None) -> CancellationError:
    """Write the error of work in a scope that was cancelled."""
    return CancellationError(f"{place(owner)} was cancelled" + (f": {reason}" if reason else ""), reason=reason)


def paused(agent_id: str, partial: str | None, way_out: str | None = None, *, on_hold: bool) -> AgentPausedError:
    """Write the error of work of an agent that has no slot any more: more urgent work has it, or an operator stopped it (`on_hold`)."""
    why, by_itself = "its slot went to more urgent work", "End it with what it has, or raise SpawnBudget.max_agents."
    if on_hold:
        why, by_itself = "an operator stopped it", f"End it with what it has; SpawnTracker.resume({named(agent_id)}) lets it go on."
    return AgentPausedError(f"agent {named(agent_id)} is paused: {why}. {way_out or by_itself}", agent_id=agent_id, partial=partial)


_INSTEAD: Final = {"Execution": "pass None", "continue_run(otherwise": "pass otherwise=[]"}
"""How a limit is stated as none that cannot be left out, by how its parameter begins."""


# -- limit events -----------------------------------------------------------------------------------------------------


def event_sentence(event: LimitEvent) -> str:
    """Return what a limit event tells: `81 % of the cost of run 'script.py' used: $0.004072 of $0.005`."""
    kind = event.limit_kind
    used, most = format_public_amount(kind, event.used), format_public_amount(kind, event.threshold)
    facts = ScopeFacts(
        event.scope_id, event.scope, event.scope_name, event.run_id, event.run_name, agent_name=event.agent_name, agent_id=event.agent_id
    )
    where = place(facts)
    share = f"{math.floor(event.ratio * 100 + 1e-9)} %" if abs(event.ratio) < _MOST_RATIO else "most"  # 80 % when 80 % is reached
    if event.tracker is not None:
        what = f"{used} of {most}" if kind == Kind.COST else f"{used} of {most} {_in_plural(kind)}"
        if event.event == "limit_nearing":
            return f"{share} of {event.tracker} used: {what}, fed in {where}; a consume() past it raises, and no call is refused for it"
        return f"{event.tracker} is passed: {what} used, fed in {where}; consume() raises, and no call is refused for it"
    if event.per is not None:
        where += f", {event.per} {event.window}" if event.window else f", in {event.per}"
    if event.by is not None:
        where += f", {_whom(event.by, event.counted_for)}"
    if event.event == "limit_nearing":
        return f"{share} of the {_in_plural(kind)} of {where} used: {used} of {most}"
    what = "observed only: would be refused" if event.decision == "observed" else _consequence(kind)
    asked = ""
    if event.requested is not None and event.used < event.threshold:  # else it says no more than that nothing is left
        asked = f", {format_public_amount(kind, event.requested)} more asked for"
    return f"the limit of {_in_plural(kind)} of {where} is reached: {used} of {most} used{asked}, {what}"


def _in_plural(counted: str) -> str:
    """Name what a limit counts, which is written as accounts do: `tokens`, `tool.search`, `tokens(uncached)`."""
    if counted.startswith("tool."):
        return f"calls of tool {named(counted.removeprefix('tool.'))}"
    plain, _, formula = counted.partition("(")
    if plain not in Kind.__members__.values():
        return counted if _TYPED.fullmatch(counted) else named(counted)
    noun = _NOUNS.get(Kind(plain))
    word = plain.replace("_", " ") if noun is None else f"{noun}s"
    return f"{word} ({formula}" if formula else word


def _consequence(kind: str) -> str:
    """Return what is refused from now on: limits of agents and tools do not stop model calls."""
    if kind in _OF_AGENTS:
        return "no more agents are let in" if kind != Kind.DEPTH else "no agents are let in below that"
    return "no more tool calls are let through" if kind.startswith("tool") else "nothing more is sent"


def _moment(again: datetime, limit: Limit) -> str:
    """Write a moment to the minute, never too early, in the limit's own time zone where it goes by a calendar."""
    even = again if not (again.second or again.microsecond) else again.replace(second=0, microsecond=0) + _MINUTE
    if not is_calendar(limit.per) or limit.tz == "UTC":
        return f"{even.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return f"{even.astimezone(ZoneInfo(limit.tz)):%Y-%m-%d %H:%M} ({limit.tz})"
