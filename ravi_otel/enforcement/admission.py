"""Work out what a call may take before it is sent, and what it took after it came back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ravi_otel.enforcement.ending import owned
from ravi_otel.enforcement.ledger.contract import Account, Line
from ravi_otel.enforcement.refusal import unpriced
from ravi_otel.enforcement.scope import Scope
from ravi_otel.policy.limits import Kind
from ravi_otel.policy.usage import Call, Usage
from ravi_otel.pricing import RateCard

_TOKENS: Final = Kind.TOKENS.value  # reading a member off its class costs more than all else that is done with it here
_INPUT_TOKENS: Final = Kind.INPUT_TOKENS.value
_OUTPUT_TOKENS: Final = Kind.OUTPUT_TOKENS.value
_COST: Final = Kind.COST.value
_MESSAGES: Final = Kind.MESSAGES.value

OUTPUT_GUESS = 1_024
"""Output tokens held per choice when the caller stated no cap."""


@dataclass(slots=True)
class Estimate:
    """Hold what a call is expected to use: tokens, and nano-USD (None: no known price)."""

    input_tokens: int
    output_tokens: int
    cost: int | None
    least_cost: int | None

    def usage(self) -> Usage:
        """Give it as a usage, marked as what was reserved."""
        return Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens, source="reserved")


NOTHING = Estimate(0, 0, None, None)
"""What is expected of a call that was not looked at yet."""


def estimate(call: Call, card: RateCard | None) -> Estimate:
    """Expect the request's own size, and the caller's cap or a guess for each choice."""
    per_choice = OUTPUT_GUESS if call.output_cap is None else call.output_cap
    output = per_choice * call.choices if call.turn else 0
    if card is None:
        return Estimate(call.input_estimate, output, None, None)
    cost = card.estimate_nano(call.input_estimate, output)
    least = card.estimate_nano(call.input_estimate, 1 if call.turn else 0)
    return Estimate(call.input_estimate, output, cost, min(cost, least))


def call_lines(scope: Scope, call: Call, expected: Estimate) -> list[Line]:
    """Say what the call asks of each account in its chain.

    Raises BudgetExhaustedError (`reason="unpriced_model"`) when a cost limit meets a model without a price.
    """
    lines: list[Line] = []
    if not call.generative:
        return lines
    for account in scope.chain:
        asks = _ASKS.get(account.kind)
        line = None if asks is None else asks(account, call, expected)
        if line is not None:
            lines.append(line)
    return lines


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
            return Line(account, 0, 0)  # let through while there is anything left; a price that comes with the answer is charged
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
    return [Line(account, 1, 1) for account in scope.chain if account.kind in (Kind.TOOL_CALLS, own)]


def attempt_lines(scope: Scope) -> list[Line]:
    """Say what one more attempt of a call asks: a request."""
    return [Line(account, 1, 1) for account in scope.chain if account.kind == Kind.REQUESTS]


def actual_amounts(usage: Usage, cost_nano: int | None, messages: int | None) -> dict[str, int]:
    """Write what was used by account kind; a kind left out settles at its grant."""
    amounts: dict[str, int] = {
        _TOKENS: usage.total_tokens,
        _INPUT_TOKENS: usage.input_tokens,
        _OUTPUT_TOKENS: usage.output_tokens,
    }
    if cost_nano is not None:
        amounts[_COST] = cost_nano
    if messages is not None:
        amounts[_MESSAGES] = messages
    return amounts
