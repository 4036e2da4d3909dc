"""Compile what a call made in a scope must satisfy, and work out what it asks: before it is sent, and after it came back.

A scope keeps its plan until `Engine.revision` grows, which it does whenever a living scope gets another limit, charges others than
before, or sets limits aside. Values of limits are not in it: they are read where they are counted, so that a raise holds at once.
What a call may take is an `Estimate`, and where a limit is strict its `Worst` case. The last call, one in all, wraps the work up with what
limits with `on_exceed="final"` keep back for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.deadlines import ScopeClock
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.judge import Grant, Line
from ravi_otel._enforcement.series import Series
from ravi_otel._enforcement.shares import CarveOut
from ravi_otel._pricing import RateCard
from ravi_otel.policy._limits import ALL, SPENDS, Formula, Kind, ScopeKind, formula_of
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call, Usage

JOINED: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION})
"""Scopes that several runs come to, each with limits."""

_TOKENS: Final = Kind.TOKENS.value  # reading a member off its class costs more than all else that is done with it here
_INPUT_TOKENS: Final = Kind.INPUT_TOKENS.value
_OUTPUT_TOKENS: Final = Kind.OUTPUT_TOKENS.value
_COST: Final = Kind.COST.value
_MESSAGES: Final = Kind.MESSAGES.value
_REQUESTS: Final = Kind.REQUESTS.value
_TURNS: Final = Kind.TURNS.value
_TOOL_CALLS: Final = Kind.TOOL_CALLS.value
_ONE_EACH: Final = frozenset({_REQUESTS, _TURNS})

COUNTED_AGENTS: Final = frozenset({Kind.DEPTH.value, Kind.AGENTS_TOTAL.value, Kind.FAN_OUT.value})
"""Kinds that are asked before an agent comes."""

OUTPUT_GUESS = 1_024
"""Output tokens held per choice when the caller stated no cap, and too few answers came to know better."""

LEAST_ASKED: Final = 4_096
"""Output tokens asked for each choice of a call that states no cap, unless longer answers were seen: models refuse more than theirs."""


@dataclass(slots=True)
class Estimate:
    """What a call is expected to use: tokens, and nano-USD by `card` (None: no known price); `known` is the endpoint's own word.

    It is `sure` when that was learned from earlier answers; a guess, and a cap that somebody stated, are seldom used up.
    """

    input_tokens: int
    output_tokens: int
    cost: int | None
    least_cost: int | None
    known: Usage | None = None
    sure: bool = False
    card: RateCard | None = field(default=None, compare=False)

    @classmethod
    def of(cls, call: Call, card: RateCard | None, learned: int | None = None) -> Estimate:
        """Expect the request's own size, and for each choice the caller's cap, else what was `learned` of its answers, else a guess.

        What the endpoint itself expects goes before all of it. A picture is held at its tokens by size and quality, speech at its
        characters, a recording at the length its file suggests, or at a minute.
        """
        known, cost, least = call.expected, None, None
        if known is None:
            guess = OUTPUT_GUESS if learned is None else learned
            per_choice = guess if call.output_cap is None else call.output_cap
            given = call.input_estimate
            made = per_choice * call.choices if call.turn else 0
            if card is not None:
                cost, least = card.estimates_nano(given, made)
        else:
            given, made = known.input_tokens, known.output_tokens
            if card is not None:
                cost, least = card.cost_nano(known), card.cost_nano(cls._sent(known, min(1, made)))
                if cost is not None and least is not None:
                    least = min(cost, least)
        return cls(given, made, cost, least, known, sure=known is None and learned is not None, card=card)

    @staticmethod
    def _sent(known: Usage, output: int) -> Usage:
        """Return the part of an expectation that is sent, with so many tokens of an answer."""
        return replace(
            known,
            output_tokens=output,
            audio_output_tokens=min(output, known.audio_output_tokens),
            image_output_tokens=min(output, known.image_output_tokens),
            reasoning_tokens=min(output, known.reasoning_tokens),
            total_tokens=known.input_tokens + output,
            source="estimated",
        )

    def usage(self) -> Usage:
        """Return it as a usage, marked as what was reserved."""
        if self.known is not None:
            return replace(self.known, source="reserved")
        return Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens, source="reserved")

    def floor(self) -> Usage:
        """Return what is charged for a call that failed on its way: what was sent, and nothing that may have come back."""
        if self.known is not None:
            return self._sent(self.known, 0)
        return Usage(input_tokens=self.input_tokens, source="estimated")

    # -- what it asks ---------------------------------------------------------------------------------------------------

    def lines(self, accounts: Iterable[Account | Line], call: Call) -> list[Line]:  # noqa: C901, PLR0912 - one loop, without a call for each
        """Return what the call asks of each of these accounts; of other kinds than a call uses it asks nothing.

        A request or a turn may come as the line that asks for it, which is the same for all calls. Raises BudgetExhaustedError
        (`reason="unpriced_model"`) when a cost limit meets a model without a price.
        """
        given, made, turn = self.input_tokens, self.output_tokens, call.turn
        least = given + turn or 1
        most = max(given + made, least)
        lines: list[Line] = []
        for account in accounts:
            if isinstance(account, Line):
                if turn or account.account.kind == _REQUESTS:
                    lines.append(account)
                continue
            kind = account.kind
            if kind == _TOKENS:
                line = Line(account, most, least)
            elif kind == _REQUESTS or (kind == _TURNS and turn):
                line = Line(account, 1, 1)
            elif kind == _COST:
                if self.cost is None or self.least_cost is None:
                    line = self._unpriced_line(account, call)
                else:  # a free model is admitted with nothing left; any other needs at least what its request costs
                    line = Line(account, max(self.cost, self.least_cost), self.least_cost)
            elif kind == _INPUT_TOKENS:
                line = Line(account, given or 1, given or 1)
            elif kind == _OUTPUT_TOKENS and call.operation != "embeddings":
                line = Line(account, made or 1, 1)
            elif kind == _MESSAGES and call.messages is not None:
                line = Line(account, call.messages + call.choices, call.messages + call.choices)
            elif account.limit.count != ALL:
                formula = formula_of(account.limit.count)
                fewest = formula.of(Usage(given, int(turn)))
                line = Line(account, max(fewest, formula.of(Usage(given, made))), fewest)
            else:
                continue
            lines.append(line)
        return lines

    def _unpriced_line(self, account: Account, call: Call) -> Line:
        if account.limit.on_unpriced == "warn" or account.observe or call.unread:
            # Let through while there is anything left; a price that comes with the answer is charged.
            least = int(call.job)
            return Line(account, least, least)
        raise owned(errors_text.LimitErrors(account).unpriced(call.provider, call.model), account)

    def free_lines(self, account: Account, call: Call) -> list[Line]:
        """Return what is counted and never refused, because the limit is set aside; also without a price."""
        if account.kind == _COST and (self.cost is None or self.least_cost is None):
            return [Line(account, 0, 0, free=True)]
        return [replace(line, free=True) for line in self.lines((account,), call)]


NOTHING = Estimate(0, 0, None, None)
"""What is expected of a call where no limit needs an estimate."""


# -- the worst case: `admission="strict"` -----------------------------------------------------------------------------


@dataclass(slots=True)
class Worst:
    """The most that a call can take: so much input, and what it is capped at for all its choices together.

    Nothing passes a strict limit as long as the provider counts no more input than the request's bound, keeps to the output cap it was
    sent, and bills by the model that was asked, at no dearer tier than the dearest known. `window` stands for the input where that cannot
    be told, None where the model's is not known. `card` is its dearest price.
    """

    call: Call
    card: RateCard | None
    window: int | None
    cap: int
    least: int

    @classmethod
    def of(cls, call: Call, longest: int, card: RateCard | None, window: int | None) -> Worst:
        """Work out the most a call can take; without a cap of the caller's it asks for 4,096, or the `longest` answer that was seen."""
        asked = max(LEAST_ASKED, longest) if call.output_cap is None else call.output_cap
        return cls(call, card, window, asked * call.choices, min(asked, max(1, call.least_cap)) * call.choices)

    def input_for(self, account: Account) -> int | None:
        """Return the input an account holds; None when it holds no worst case, but the estimate."""
        call = self.call
        if not account.strict:
            return None
        if call.unbounded is None:
            return call.input_bound
        return self.window if account.limit.on_unbounded == "window" and call.least_cap else None

    def lines(self, account: Account, expected: Estimate) -> list[Line]:
        """Return what the call asks of one account: the worst case of a strict one, what is expected of any other."""
        size = self.input_for(account)
        want = None if size is None else self._most(account, size, self.cap)
        if size is None or want is None:
            return expected.lines((account,), self.call)
        least = self._most(account, size, self.least) or 0
        return [Line(account, want, least)] if want or account.kind != _OUTPUT_TOKENS else []

    def covered(self, grant: Grant) -> tuple[int, Account] | None:
        """Return the output cap of each choice that every strict hold covers, and the tightest account; None without one."""
        tightest: tuple[int, Account] | None = None
        if not self.cap:
            return None
        for line, held in grant.holds:
            account = line.account
            size = None if line.free or account.observe else self.input_for(account)
            if size is None:
                continue
            room = self._room(account, size, held)
            if room is not None and (tightest is None or room < tightest[0]):
                tightest = room, account
        return None if tightest is None else (tightest[0] // self.call.choices, tightest[1])

    def _most(self, account: Account, size: int, output: int) -> int | None:
        """Return the most an account can be charged for so much input and output; None of a kind that has no worst case."""
        kind = account.kind
        if kind == _TOKENS:
            return size + output or 1
        if kind == _INPUT_TOKENS:
            return size or 1
        if kind == _OUTPUT_TOKENS:
            return output
        if kind == _COST:
            return None if self.card is None else self.card.worst_nano(size, output)
        return formula_of(account.limit.count).most(size, output)

    def _room(self, account: Account, size: int, held: int) -> int | None:
        """Return how many tokens of output a hold is enough for; None for any number."""
        kind = account.kind
        if kind == _TOKENS:
            return max(0, held - size)
        if kind == _OUTPUT_TOKENS:
            return held
        if kind == _COST:
            return None if self.card is None else self.card.output_within(held, size)
        return None if kind == _INPUT_TOKENS else formula_of(account.limit.count).covered(held, size)


# -- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChargingRules:
    """What one scope changes about who is charged for what is done in it; replaced as a whole, by `Scope.change_rules`.

    An agent that `pools` charges its parent agent's tracker too. `left_out` are accounts that it does not charge: those a part was
    carved out of for it, which are charged when it closes, and, once it is closed, that part itself. `suspended` are the kinds
    whose limits count and do not refuse, where they are declared with `suspend="allow"`. `carved` is the part it has. `metered` are
    the counters of a weighted share, each with the accounts of which it counts what is charged in here. An agent that `waits` stands
    in line for the slot that it lost, where others end.
    """

    pools: bool = False
    left_out: frozenset[Account | Series] = frozenset()
    suspended: frozenset[str] = frozenset()
    carved: CarveOut | None = None
    metered: tuple[tuple[Account, frozenset[Account]], ...] = ()
    waits: bool = False


DEFAULT_RULES: Final = ChargingRules()
"""The rules of nearly every scope: it changes nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call made in one scope must satisfy, compiled for one revision of the limits.

    `chain` are the limits that it is charged to, root to leaf, and the counters of weighted shares after them; limits of time are in
    `clocks`. A limit that renews or counts by somebody is in it as a series, and `accounts` gives its counter of the moment. `suspended`
    are the kinds that are set aside here, and `carved` the parts of the agents around: nothing in here waits for what they hold.
    `formulas` are what is counted besides all tokens, the input and the output. `priced` says that cost is limited, `sized` that cost or
    tokens of any kind are, so that a call has to be estimated, and `strict` that the worst case is held for some limit.
    `counts_agents` says that a limit here or around is asked before an agent comes.
    """

    revision: int = field(compare=False)
    facts: ScopeFacts
    chain: tuple[Account | Series, ...]
    clocks: tuple[tuple[Account, ScopeClock], ...]
    suspended: frozenset[str]
    carved: tuple[object, ...]
    formulas: frozenset[Formula]
    priced: bool
    sized: bool
    strict: bool
    counts_agents: bool
    fixed: tuple[Account, ...] | None  # the whole chain, where none of its limits has several counters
    asked: tuple[Account | Line, ...] = field(compare=False)  # the same for `Estimate.lines`, with what every call asks of it

    @classmethod
    def of(
        cls,
        facts: ScopeFacts,
        revision: int,
        chain: tuple[Account | Series, ...],
        clocks: tuple[tuple[Account, ScopeClock], ...],
        rules: Iterable[ChargingRules],
        *,
        counts_agents: bool = False,
    ) -> Plan:
        """Compile the plan of a scope with these `facts`; `rules` are its own and those of all scopes around."""
        suspended, carved = set[str](), list[CarveOut]()
        for each in rules:
            if each is not DEFAULT_RULES:
                suspended.update(each.suspended)
                if each.carved is not None:
                    carved.append(each.carved)
        formulas, fixed = set[Formula](), list[Account]()
        priced = sized = strict = False
        for limit in chain:
            priced = priced or limit.kind == _COST
            sized = sized or limit.limit.kind in SPENDS
            strict = strict or limit.strict
            if limit.limit.count != ALL:
                formulas.add(formula_of(limit.limit.count))
            if isinstance(limit, Account):
                fixed.append(limit)
        return cls(
            revision=revision,
            facts=facts,
            chain=chain,
            clocks=clocks,
            suspended=frozenset(suspended),
            carved=tuple(carved),
            formulas=frozenset(formulas),
            priced=priced,
            sized=sized,
            strict=strict,
            counts_agents=counts_agents,
            fixed=tuple(fixed) if len(fixed) == len(chain) else None,
            asked=tuple(Line(account, 1, 1) if account.kind in _ONE_EACH else account for account in fixed),
        )

    def accounts(self, model: str | None = None) -> tuple[Account, ...]:
        """Return the accounts that a call to `model` made at this moment is held against, root to leaf, clocks left out."""
        if self.fixed is not None:
            return self.fixed
        return tuple(each if isinstance(each, Account) else each.at(self.facts, model) for each in self.chain)

    def standing(self, model: str | None = None) -> tuple[tuple[Account, int, int, int], ...]:
        """Return where each of them stands at this moment, and after them each clock: what is used, held, and was denied."""
        counted = [(account, account.used) for account in self.accounts(model)]
        timed = [(account, max(account.used, clock.elapsed_ns(account, clock.until_ns))) for account, clock in self.clocks]
        return tuple((account, used, account.held, account.denied) for account, used in (*counted, *timed))

    def lines(self, call: Call, expected: Estimate | None = None, worst: Worst | None = None) -> list[Line]:
        """Return what a call asks of each account, by what is `expected` of it, and `worst` of it where limits are strict.

        Nothing need be expected where no account is `sized`. Raises BudgetExhaustedError (`reason="unpriced_model"`) when a cost limit
        meets a model without a price.
        """
        if not call.generative:
            return []
        expected = NOTHING if expected is None else expected
        if worst is None and not self.suspended:
            return expected.lines(self.accounts(call.model) if self.fixed is None else self.asked, call)
        accounts = self.accounts(call.model)
        lines: list[Line] = []
        for account in accounts:
            if self.sets_aside(account):
                lines += expected.free_lines(account, call)
            else:
                lines += expected.lines((account,), call) if worst is None else worst.lines(account, expected)
        return lines

    def refuses_unbounded(self, call: Call, window: Callable[[], int | None]) -> Account | None:
        """Return the account that refuses a call whose size cannot be told, root first; None when none does."""
        if call.unbounded is None:
            return None
        for account in self.accounts(call.model):
            if not account.strict or account.observe or self.sets_aside(account) or account.limit.on_unbounded == "admit":
                continue
            if account.limit.on_unbounded == "refuse" or not call.least_cap or window() is None:
                return account
        return None

    def counted_lines(self, kinds: Collection[str], amount: int = 1, model: str | None = None) -> list[Line]:
        """Return what so much of these kinds, which are counted at once, asks of each account."""
        lines: list[Line] = []
        for account in self.accounts(model) if self.fixed is None else self.fixed:
            if account.kind in kinds:
                line = Line(account, amount, amount)
                if self.suspended:
                    line.free = self.sets_aside(account)
                lines.append(line)
        return lines

    def tool_lines(self, tool: str) -> list[Line]:
        """Return what one execution of `tool` asks of each account."""
        return self.counted_lines((_TOOL_CALLS, f"tool.{tool}"))

    def passed_lines(self, tool: str) -> list[Line]:
        """Ask each account that counts `tool` for nothing: one whose limit is passed already refuses even that."""
        return self.counted_lines((_TOOL_CALLS, f"tool.{tool}"), 0)

    def attempt_lines(self, model: str | None = None) -> list[Line]:
        """Return what one more attempt of a call asks: a request."""
        return self.counted_lines((_REQUESTS,), model=model)

    def amounts(self, usage: Usage, cost_nano: int | None, messages: int | None) -> dict[str, int]:
        """Write what was used by account kind; a kind left out settles at its grant, as tokens do that nobody counted or told apart."""
        amounts: dict[str, int] = {}
        split = usage.input_tokens > 0 or usage.output_tokens > 0  # nearly always: nothing more is asked then
        if not split and usage.total_only:
            amounts[_TOKENS] = usage.total_tokens
        elif (split and usage.total_tokens > 0) or not usage.tokenless:
            amounts[_TOKENS] = usage.total_tokens
            amounts[_INPUT_TOKENS] = usage.input_tokens
            amounts[_OUTPUT_TOKENS] = usage.output_tokens
            for formula in self.formulas:
                amounts[f"{_TOKENS}({formula.text})"] = formula.of(usage)
        if cost_nano is not None:
            amounts[_COST] = cost_nano
        if messages is not None:
            amounts[_MESSAGES] = messages
        return amounts

    def sets_aside(self, account: Account | Series) -> bool:
        """Whether a limit of the chain counts what is done here and refuses none of it."""
        return bool(self.suspended) and account.limit.may_be_set_aside(account.kind, self.suspended)

    def in_force(self) -> list[Account]:
        """Return what limits a call made now: clocks with it and what only observes too, without what is set aside."""
        return [*(one for one in self.accounts() if not self.sets_aside(one)), *(account for account, _ in self.clocks)]


# -- the last call -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class LastCallState:
    """Whether the last call of one scope or block, on what limits with `on_exceed="final"` keep back for it, was taken."""

    taken: bool = False


Finals = list[tuple[LastCallState, Account]]
"""Limits that keep something back, root to leaf, each with what says whether that was taken."""


class LastCall(LastCallState):
    """What one open block gives: one call in all, made in the block or anywhere below it, and no tool.

    `finals` are the limits that the block was opened for; `around` is the block it was opened in.
    """

    __slots__ = ("_around", "_finals", "over")

    def __init__(self, finals: Finals, around: LastCall | None) -> None:
        super().__init__()
        self._finals = finals
        self._around = around
        self.over = False

    def _open(self) -> list[LastCall]:
        """Return the blocks that are open yet, from this one outwards: what outlived a block is in those around it only."""
        blocks: list[LastCall] = []
        block: LastCall | None = self
        while block is not None:
            if not block.over:
                blocks.append(block)
            block = block._around  # noqa: SLF001 - another block of this class
        return blocks

    def claim(self, engine: Engine, here: Finals) -> LastCallClaim | None:
        """Take what is kept back for the call that is about to be made, `here` too; raises when another has taken it.

        None once the block is over: it is a call like any other then.
        """
        blocks = self._open()
        if not blocks:
            return None
        finals = [*(each for block in blocks for each in block._finals), *here]  # noqa: SLF001 - blocks of this class
        claim = LastCallClaim(engine.lock, [*blocks, *(kept for kept, _ in finals)])
        if not claim.take() and not engine.observe:
            _, account = next((each for each in finals if each[0].taken), finals[0])
            engine.count("denied", account)
            raise owned(errors_text.LimitErrors(account).wrapped(), account)
        return claim

    def refuse_tool(self, engine: Engine, name: str) -> None:
        """Raise: in the last call's block no tool runs; in shadow mode it does, and after the block."""
        blocks = self._open()
        if not blocks or engine.observe:
            return
        _, account = blocks[0]._finals[0]  # noqa: SLF001 - a block of this class
        engine.count("denied", account)
        raise owned(errors_text.LimitErrors(account).wrapping_up(name), account)


class LastCallClaim:
    """One call's right to what is kept back, until it is clear whether the call was sent."""

    __slots__ = ("_kept", "_lock", "_taken")

    def __init__(self, lock: AbstractContextManager[bool], kept: Sequence[LastCallState]) -> None:
        self._lock = lock
        self._kept = kept
        self._taken = False

    def take(self) -> bool:
        """Take it in every block, and every scope that keeps something back; False when one of them has given it away already."""
        with self._lock:
            if not any(each.taken for each in self._kept):
                self._mark(taken=True)
            return self._taken

    def give_back(self) -> None:
        """Leave it to the next call, because this one was not sent."""
        with self._lock:
            if self._taken:
                self._mark(taken=False)

    def _mark(self, *, taken: bool) -> None:
        self._taken = taken
        for each in self._kept:
            each.taken = taken
