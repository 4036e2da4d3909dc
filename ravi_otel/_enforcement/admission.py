"""Work out what a call may take before it is sent, its worst case where a limit is strict, and what it took after it came back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ravi_otel._enforcement.errors_text import owned, unpriced
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Grant, Line
from ravi_otel._enforcement.scope import Scope
from ravi_otel._pricing import RateCard
from ravi_otel.policy.formula import ALL, Formula, formula_of
from ravi_otel.policy.limits import Kind
from ravi_otel.policy.usage import Call, Usage

_TOKENS: Final = Kind.TOKENS.value  # reading a member off its class costs more than all else that is done with it here
_INPUT_TOKENS: Final = Kind.INPUT_TOKENS.value
_OUTPUT_TOKENS: Final = Kind.OUTPUT_TOKENS.value
_COST: Final = Kind.COST.value
_MESSAGES: Final = Kind.MESSAGES.value

OUTPUT_GUESS = 1_024
"""Output tokens held per choice when the caller stated no cap, and too few answers came to know better."""


@dataclass(slots=True)
class Estimate:
    """Hold what a call is expected to use: tokens, and nano-USD (None: no known price); `known` is the endpoint's own word.

    It is `sure` when that was learned from earlier answers; a guess, and a cap that somebody stated, are seldom used up.
    """

    input_tokens: int
    output_tokens: int
    cost: int | None
    least_cost: int | None
    known: Usage | None = None
    sure: bool = False

    def usage(self) -> Usage:
        """Give it as a usage, marked as what was reserved."""
        if self.known is not None:
            return replace(self.known, source="reserved")
        return Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens, source="reserved")

    def floor(self) -> Usage:
        """Give what is charged for a call that failed on its way: what was sent, and nothing that may have come back."""
        if self.known is not None:
            return _sent(self.known, 0)
        return Usage(input_tokens=self.input_tokens, source="estimated")


NOTHING = Estimate(0, 0, None, None)
"""What is expected of a call that was not looked at yet."""


def estimate(call: Call, card: RateCard | None, learned: int | None = None) -> Estimate:
    """Expect the request's own size, and for each choice the caller's cap, else what was `learned` of its answers, else a guess.

    What the endpoint itself expects goes before all of it.

    A picture is held at its tokens by size and quality (`endpoints.images`), speech at its characters, a recording at
    the length its file suggests, or at a minute.
    """
    if call.expected is not None:
        return _as_expected(call.expected, card)
    guess = OUTPUT_GUESS if learned is None else learned
    per_choice = guess if call.output_cap is None else call.output_cap
    output = per_choice * call.choices if call.turn else 0
    cost = least = None
    if card is not None:
        cost = card.estimate_nano(call.input_estimate, output)
        least = card.estimate_nano(call.input_estimate, 1 if call.turn else 0)
    if cost is None or least is None:
        return Estimate(call.input_estimate, output, None, None, sure=learned is not None)
    return Estimate(call.input_estimate, output, cost, min(cost, least), sure=learned is not None)


def _as_expected(known: Usage, card: RateCard | None) -> Estimate:
    cost = None if card is None else card.cost_nano(known)
    least = None if card is None else card.cost_nano(_sent(known, min(1, known.output_tokens)))
    if cost is None or least is None:
        return Estimate(known.input_tokens, known.output_tokens, None, None, known)
    return Estimate(known.input_tokens, known.output_tokens, cost, min(cost, least), known)


def _sent(known: Usage, output: int) -> Usage:
    """Give the part of an expectation that is sent, with so many tokens of an answer."""
    return replace(
        known,
        output_tokens=output,
        audio_output_tokens=min(output, known.audio_output_tokens),
        image_output_tokens=min(output, known.image_output_tokens),
        reasoning_tokens=min(output, known.reasoning_tokens),
        total_tokens=known.input_tokens + output,
        source="estimated",
    )


def call_lines(scope: Scope, call: Call, expected: Estimate) -> list[Line]:
    """Say what the call asks of each account in its chain.

    Raises BudgetExhaustedError (`reason="unpriced_model"`) when a cost limit meets a model without a price.
    """
    lines: list[Line] = []
    if not call.generative:
        return lines
    plan = scope.plan
    for account in plan.accounts(call.model):
        asks = _ASKS.get(account.kind)
        if plan.suspended and plan.sets_aside(account):
            line = free_line(account, call, expected)
        elif asks is not None:
            line = asks(account, call, expected)
        elif account.limit.count != ALL:
            line = _formula_line(account, call, expected)
        else:
            continue
        if line is not None:
            lines.append(line)
    return lines


def free_line(account: Account, call: Call, expected: Estimate) -> Line | None:
    """Ask what is counted and never refused, because `suspend_limits` has set the limit aside; also without a price."""
    if account.kind == _COST and (expected.cost is None or expected.least_cost is None):
        return Line(account, 0, 0, free=True)
    line = line_of(account, call, expected)
    return None if line is None else replace(line, free=True)


def line_of(account: Account, call: Call, expected: Estimate) -> Line | None:
    """Say what the call asks of one account; see `call_lines`."""
    asks = _ASKS.get(account.kind, _formula_line if account.limit.count != ALL else None)
    return None if asks is None else asks(account, call, expected)


def _formula_line(account: Account, call: Call, expected: Estimate) -> Line:
    formula = formula_of(account.limit.count)
    least = formula.of(Usage(expected.input_tokens, int(call.turn)))
    return Line(account, max(least, formula.of(Usage(expected.input_tokens, expected.output_tokens))), least)


def _tokens_line(account: Account, call: Call, expected: Estimate) -> Line:
    least = expected.input_tokens + call.turn or 1
    want = expected.input_tokens + expected.output_tokens
    return Line(account, max(want, least), least)


def _request_line(account: Account, _call: Call, _expected: Estimate) -> Line:
    return Line(account, 1, 1)


def _turn_line(account: Account, call: Call, _expected: Estimate) -> Line | None:
    return Line(account, 1, 1) if call.turn else None


def _input_line(account: Account, _call: Call, expected: Estimate) -> Line:
    least = max(expected.input_tokens, 1)
    return Line(account, least, least)


def _output_line(account: Account, call: Call, expected: Estimate) -> Line | None:
    return None if call.operation == "embeddings" else Line(account, max(expected.output_tokens, 1), 1)


def _messages_line(account: Account, call: Call, _expected: Estimate) -> Line | None:
    return None if call.messages is None else Line(account, call.messages + call.choices, call.messages + call.choices)


def _cost_line(account: Account, call: Call, expected: Estimate) -> Line | None:
    if expected.cost is None or expected.least_cost is None:
        if account.limit.on_unpriced == "warn" or account.observe or call.unread:
            # Let through while there is anything left; a price that comes with the answer is charged.
            least = int(call.job)
            return Line(account, least, least)
        raise owned(unpriced(account, call.provider, call.model), account)
    least = expected.least_cost
    # A model that costs nothing passes an empty purse; any other needs at least what its request costs.
    return Line(account, max(expected.cost, least), least)


_ASKS: Final[Mapping[str, Callable[[Account, Call, Estimate], Line | None]]] = {
    Kind.TOKENS: _tokens_line,
    Kind.REQUESTS: _request_line,
    Kind.TURNS: _turn_line,
    Kind.COST: _cost_line,
    Kind.INPUT_TOKENS: _input_line,
    Kind.OUTPUT_TOKENS: _output_line,
    Kind.MESSAGES: _messages_line,
}
"""What a call asks of an account, by the account's kind; other kinds are none of its business."""


def tool_lines(scope: Scope, tool: str) -> list[Line]:
    """Say what one execution of `tool` asks of each account in the chain."""
    own = f"{Kind.TOOL_CALLS}" if not tool else f"tool.{tool}"
    return [Line(account, 1, 1) for account in scope.plan.accounts() if account.kind in (Kind.TOOL_CALLS, own)]


def passed_lines(scope: Scope, tool: str) -> list[Line]:
    """Ask each account that counts `tool` for nothing: one whose limit is passed already refuses even that."""
    return [Line(line.account, 0, 0) for line in tool_lines(scope, tool)]


def attempt_lines(scope: Scope, model: str | None = None) -> list[Line]:
    """Say what one more attempt of a call asks: a request."""
    return [Line(account, 1, 1) for account in scope.plan.accounts(model) if account.kind == Kind.REQUESTS]


def actual_amounts(usage: Usage, cost_nano: int | None, messages: int | None, formulas: Iterable[Formula] = ()) -> dict[str, int]:
    """Write what was used by account kind; a kind left out settles at its grant, as tokens do that nobody counted or told apart.

    `formulas` are what accounts of the scope count besides (`Plan.formulas`).
    """
    amounts: dict[str, int] = {}
    if usage.total_only:
        amounts[_TOKENS] = usage.total_tokens
    elif not usage.tokenless:
        amounts[_TOKENS] = usage.total_tokens
        amounts[_INPUT_TOKENS] = usage.input_tokens
        amounts[_OUTPUT_TOKENS] = usage.output_tokens
        for formula in formulas:
            amounts[f"{_TOKENS}({formula.text})"] = formula.of(usage)
    if cost_nano is not None:
        amounts[_COST] = cost_nano
    if messages is not None:
        amounts[_MESSAGES] = messages
    return amounts


# -- the worst case: `admission="strict"` -----------------------------------------------------------------------------
#
# Nothing passes a strict limit as long as the provider counts no more input than the request's bound, keeps to the output cap it was
# sent, and bills by the model that was asked, at no dearer tier than the dearest known.


LEAST_ASKED: Final = 4_096
"""Output tokens asked for each choice of a call that states no cap, unless longer answers were seen: models refuse more than theirs."""


@dataclass(slots=True)
class Worst:
    """Hold the most a call can take: so many tokens of input, and what it is capped at for all its choices together.

    `window` stands for the input where that cannot be told, None where the model's is not known. `card` is its dearest price.
    """

    call: Call
    card: RateCard | None
    window: int | None
    cap: int
    least: int

    def input_for(self, account: Account) -> int | None:
        """Give the input an account holds; None when it holds no worst case, but the estimate."""
        call = self.call
        if not account.strict:
            return None
        if call.unbounded is None:
            return call.input_bound
        return self.window if account.limit.on_unbounded == "window" and call.least_cap else None

    def lines(self, scope: Scope, expected: Estimate) -> list[Line]:
        """Say what the call asks of each account: the worst case of a strict one, what is expected of any other or one set aside."""
        found: list[Line] = []
        plan = scope.plan
        for account in plan.accounts(self.call.model):
            free = plan.sets_aside(account)
            line = free_line(account, self.call, expected) if free else self._line(account, expected)
            if line is not None:
                found.append(line)
        return found

    def _line(self, account: Account, expected: Estimate) -> Line | None:
        size = self.input_for(account)
        most = None if size is None else _MOST.get(account.kind, _most_by_formula if account.limit.count != ALL else None)
        if size is None or most is None or (account.kind == _COST and self.card is None):
            return line_of(account, self.call, expected)
        want, least = most(self, account, size, self.cap), most(self, account, size, self.least)
        return Line(account, want, least) if want or account.kind != _OUTPUT_TOKENS else None

    def covered(self, grant: Grant) -> tuple[int, Account] | None:
        """Give the output cap of each choice that every strict hold covers, and the tightest account; None without one."""
        tightest: tuple[int, Account] | None = None
        if not self.cap:
            return None
        for line, held in grant.holds:
            account = line.account
            size = None if line.free or account.observe else self.input_for(account)
            if size is None:
                continue
            room = _room(self, account, size, held)
            if room is not None and (tightest is None or room < tightest[0]):
                tightest = room, account
        return None if tightest is None else (tightest[0] // self.call.choices, tightest[1])


def worst_of(call: Call, longest: int, card: RateCard | None, window: int | None) -> Worst:
    """Work out the most a call can take; without a cap of the caller's it asks for 4,096, or the `longest` answer that was seen."""
    asked = max(LEAST_ASKED, longest) if call.output_cap is None else call.output_cap
    return Worst(call, card, window, asked * call.choices, min(asked, max(1, call.least_cap)) * call.choices)


def refused_by(scope: Scope, call: Call, window: Callable[[], int | None]) -> Account | None:
    """Give the account that refuses a call whose size cannot be told, root first; None when none does."""
    if call.unbounded is None:
        return None
    plan = scope.plan
    for account in plan.accounts(call.model):
        if not account.strict or account.observe or plan.sets_aside(account) or account.limit.on_unbounded == "admit":
            continue
        if account.limit.on_unbounded == "refuse" or not call.least_cap or window() is None:
            return account
    return None


def _most_tokens(_worst: Worst, _account: Account, size: int, output: int) -> int:
    return size + output or 1


def _most_input(_worst: Worst, _account: Account, size: int, _output: int) -> int:
    return size or 1


def _most_output(_worst: Worst, _account: Account, _size: int, output: int) -> int:
    return output


def _most_cost(worst: Worst, _account: Account, size: int, output: int) -> int:
    return 0 if worst.card is None else worst.card.worst_nano(size, output)


def _most_by_formula(_worst: Worst, account: Account, size: int, output: int) -> int:
    return formula_of(account.limit.count).most(size, output)


_MOST: Final[Mapping[str, Callable[[Worst, Account, int, int], int]]] = {
    _TOKENS: _most_tokens,
    _INPUT_TOKENS: _most_input,
    _OUTPUT_TOKENS: _most_output,
    _COST: _most_cost,
}


def _room(worst: Worst, account: Account, size: int, held: int) -> int | None:
    """Give how many tokens of output a hold is enough for; None for any number."""
    kind = account.kind
    if kind == _TOKENS:
        return max(0, held - size)
    if kind == _OUTPUT_TOKENS:
        return held
    if kind == _COST:
        return None if worst.card is None else worst.card.output_within(held, size)
    return None if kind == _INPUT_TOKENS else formula_of(account.limit.count).covered(held, size)
