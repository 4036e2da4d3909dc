"""Work out what a call may take before it is sent, and what it took after it came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ravi_otel.enforcement.ending import owned
from ravi_otel.enforcement.ledger.contract import Account, Line
from ravi_otel.enforcement.refusal import unpriced
from ravi_otel.enforcement.scope import Scope
from ravi_otel.policy.limits import Kind
from ravi_otel.policy.usage import Call, Usage
from ravi_otel.pricing import RateCard

OUTPUT_GUESS = 1_024
"""Output tokens held per choice when the caller stated no cap."""


@dataclass(frozen=True, slots=True)
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
    for account in scope.chain:
        line = _call_line(account, call, expected)
        if line is not None:
            lines.append(line)
    return lines


def _call_line(account: Account, call: Call, expected: Estimate) -> Line | None:  # noqa: PLR0911 - one way out a kind
    kind = account.kind
    if not call.generative:
        return None
    if kind == Kind.TOKENS:
        spare = 1 if call.turn else 0
        least = max(expected.input_tokens + spare, 1)
        return Line(account, max(expected.input_tokens + expected.output_tokens, least), least)
    if kind == Kind.REQUESTS:
        return Line(account, 1, 1)
    if kind == Kind.TURNS:
        return Line(account, 1, 1) if call.turn else None
    if kind == Kind.COST:
        return _cost_line(account, call, expected)
    if kind == Kind.INPUT_TOKENS:
        least = max(expected.input_tokens, 1)
        return Line(account, least, least)
    if kind == Kind.OUTPUT_TOKENS:
        return None if call.operation == "embeddings" else Line(account, max(expected.output_tokens, 1), 1)
    if kind == Kind.MESSAGES:
        return None if call.messages is None else Line(account, call.messages + call.choices, call.messages + call.choices)
    return None


def _cost_line(account: Account, call: Call, expected: Estimate) -> Line | None:
    if expected.cost is None or expected.least_cost is None:
        if account.limit.on_unpriced == "warn" or account.observe or call.unread:
            return Line(account, 0, 0)  # let through while there is anything left; a price that comes with the answer is charged
        raise owned(unpriced(account, call.provider, call.model), account)
    least = expected.least_cost
    # A model that costs nothing passes an empty purse; any other needs at least what its request costs.
    return Line(account, max(expected.cost, least), least)


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
        Kind.TOKENS: usage.total_tokens,
        Kind.INPUT_TOKENS: usage.input_tokens,
        Kind.OUTPUT_TOKENS: usage.output_tokens,
    }
    if cost_nano is not None:
        amounts[Kind.COST] = cost_nano
    if messages is not None:
        amounts[Kind.MESSAGES] = messages
    return amounts


def has_cost_limit(chain: Sequence[Account]) -> bool:
    """Tell whether any account of the chain counts cost."""
    return any(account.kind == Kind.COST for account in chain)
