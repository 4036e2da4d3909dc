"""Compile what a call made in a scope must satisfy: which limits it is charged to, which of them refuse, which clocks run.

A scope keeps its plan until `Engine.revision` grows, which it does whenever a living scope gets another limit, charges others than
before, or sets limits aside. Values of limits are not in it: they are read where they are counted, so that a raise holds at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from ravi_otel._enforcement.admission import NOTHING, Estimate, Worst
from ravi_otel._enforcement.deadlines import ScopeClock
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Line
from ravi_otel._enforcement.series import Series
from ravi_otel._enforcement.shares import CarveOut
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.formula import ALL, Formula, formula_of
from ravi_otel.policy.limits import SPENDS, Kind, ScopeKind
from ravi_otel.policy.usage import Call, Usage

JOINED: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION})
"""Scopes that several runs come to, each with limits."""

_TOKENS: Final = Kind.TOKENS.value  # reading a member off its class costs more than all else that is done with it here
_INPUT_TOKENS: Final = Kind.INPUT_TOKENS.value
_OUTPUT_TOKENS: Final = Kind.OUTPUT_TOKENS.value
_COST: Final = Kind.COST.value
_MESSAGES: Final = Kind.MESSAGES.value
_REQUESTS: Final = Kind.REQUESTS.value
_TOOL_CALLS: Final = Kind.TOOL_CALLS.value


@dataclass(frozen=True, slots=True)
class ChargingRules:
    """What one scope changes about who is charged for what is done in it; replaced as a whole, by `Scope.change_rules`.

    An agent that `pools` charges its parent agent's tab too. `left_out` are accounts that it does not charge: those a part was
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
    fixed: tuple[Account, ...] | None  # the whole chain, where none of its limits has several counters

    @classmethod
    def of(
        cls,
        facts: ScopeFacts,
        revision: int,
        chain: tuple[Account | Series, ...],
        clocks: tuple[tuple[Account, ScopeClock], ...],
        rules: Iterable[ChargingRules],
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
            fixed=tuple(fixed) if len(fixed) == len(chain) else None,
        )

    def accounts(self, model: str | None = None) -> tuple[Account, ...]:
        """Return the accounts that a call to `model` made at this moment is held against, root to leaf, clocks left out."""
        if self.fixed is not None:
            return self.fixed
        return tuple(each if isinstance(each, Account) else each.at(self.facts, model) for each in self.chain)

    def lines(self, call: Call, expected: Estimate | None = None, worst: Worst | None = None) -> list[Line]:
        """Return what a call asks of each account, by what is `expected` of it, and `worst` of it where limits are strict.

        Nothing need be expected where no account is `sized`. Raises BudgetExhaustedError (`reason="unpriced_model"`) when a cost limit
        meets a model without a price.
        """
        if not call.generative:
            return []
        expected = NOTHING if expected is None else expected
        accounts = self.accounts(call.model)
        if worst is None and not self.suspended:
            return expected.lines(accounts, call)
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
        lines = [Line(account, amount, amount) for account in self.accounts(model) if account.kind in kinds]
        for line in lines if self.suspended else ():
            line.free = self.sets_aside(line.account)
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
