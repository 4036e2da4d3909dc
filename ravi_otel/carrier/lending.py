"""Lend a part of what is left to the process that one request goes to, and take back what it did not use.

A loan is held on the caller's limits from before the request leaves. What came back signed as used is charged and the rest is free
again; what never came back, or came too late, is charged in full. So the callee needs no store in common with the caller, and
nothing that is lost on the way makes a limit looser.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Collection, Mapping
from decimal import Decimal
from functools import cache
from types import TracebackType
from typing import Final, Self, cast

from opentelemetry import context as otel_context

from ravi_otel import _current
from ravi_otel._flow import Done, Flow, run_async, run_sync
from ravi_otel.carrier.configured import Configured, configured
from ravi_otel.carrier.fields import pairs_of
from ravi_otel.carrier.keys import VARIABLE as KEYS
from ravi_otel.carrier.standing import names_of, now_ms
from ravi_otel.carrier.telling import rejected
from ravi_otel.carrier.token import Loan, Spent, counter_name, read_spent
from ravi_otel.carrier.written import LENT, MalformedError, seconds
from ravi_otel.enforcement import refusal
from ravi_otel.enforcement.ending import owned
from ravi_otel.enforcement.ledger.account import Account, Nature
from ravi_otel.enforcement.ledger.contract import Denied, Line, Reservation, new_op_id
from ravi_otel.enforcement.scope import Scope
from ravi_otel.enforcement.tally import add_charged, add_counts, add_usage
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy import checks
from ravi_otel.policy.limits import Kind, is_built_in
from ravi_otel.policy.usage import Usage
from ravi_otel.runtime.late import drain, look_for
from ravi_otel.runtime.patience import owner, patience
from ravi_otel.runtime.state import STATE

RETURN_HEADER: Final = "ravi-spent"
"""The response header in which what was used of a loan comes back, signed."""

LONGEST_S: Final = 86_400.0
_MOST_OPEN: Final = 100_000
_LOAN: Final = otel_context.create_key("ravi-otel-loan")
_SUMS: Final = frozenset({Nature.COUNTED, Nature.HELD, Nature.AFTER})
_COUNTS: Final = (Kind.REQUESTS, Kind.TURNS, Kind.TOOL_CALLS)

_open: dict[str, Lent] = {}
"""Every loan that left and did not come back yet, by its id."""

_lock = threading.RLock()  # one thread may come again, in a signal handler


def _renew() -> None:
    """Leave the parent process its loans: in a forked child there are none."""
    global _lock  # noqa: PLW0603 - another thread of the parent process may have held it at the fork
    _lock = threading.RLock()
    _open.clear()


os.register_at_fork(after_in_child=_renew)


class Lent:
    """Be one loan: held from `with` (or the first use) on, for one request, and back when the answer says what was used.

    `used` is what came back as used, by kind in inner units, None until then; `status` is "new", "held", "sent", "returned", "spent"
    (charged in full) or "released" (never sent).
    """

    def __init__(self, amounts: Mapping[str, int], expires_s: float) -> None:
        self.amounts: Final = dict(amounts)
        self.expires_s: Final = expires_s
        self.id: Final = secrets.token_hex(16)
        self.expires_ms = 0
        self.status = "new"
        self.used: Mapping[str, int] | None = None
        self._strict = False
        self._held: tuple[str, ...] = ()
        self._op_id = new_op_id()
        self._scope: Scope | None = None
        self._attachment: _current.Attachment | None = None

    def __repr__(self) -> str:
        return f"<Lent {self.id[:8]} {self.status}>"

    # -- as a block ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        run_sync(self.hold(blocking=True))
        return self._entered()

    async def __aenter__(self) -> Self:
        await run_async(self.hold(blocking=False))
        return self._entered()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        run_sync(self._left())

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await run_async(self._left())

    def _entered(self) -> Self:
        self._attachment = _current.Attachment(otel_context.set_value(_LOAN, self))
        self._attachment.__enter__()
        return self

    def _left(self) -> Flow[None]:
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.restore()
        with _lock:
            unsent = self.status == "held"
            if unsent:
                self.status = "released"
        if unsent and self._scope is not None:
            yield from self._scope.engine.ledger.release(self._op_id)

    # -- its way ------------------------------------------------------------------------------------------------------

    def hold(self, *, blocking: bool) -> Flow[None]:
        """Hold it on the limits around, once.

        Raises BudgetExhaustedError, or BudgetContendedError, where it is not left; then nothing is held, and no limit drains.
        """
        if self.status != "new":
            raise ConfigurationError("a loan is for one request: give each a lend() of its own.")
        if not configured().keys:
            raise ConfigurationError(f"lend() needs a key to sign loans with: set {KEYS}=ID:SECRET here, and the same where they are used.")
        drain()
        scope, _ = STATE.locate()
        scope.checkpoint()
        lines = [
            Line(each, self.amounts[each.kind], self.amounts[each.kind], carved=True)
            for each in scope.chain
            if each.kind in self.amounts and each.nature in _SUMS
        ]
        _refuse_too_large(scope, lines)
        with _lock:
            if len(_open) >= _MOST_OPEN:
                raise ConfigurationError(f"{_MOST_OPEN} loans are open: give them back, or lend for a shorter time with lend(expires_s=).")
            self.status, self._scope, self._strict = "held", scope, any(line.account.strict for line in lines)
            self._held = names_of(line.account for line in lines)
        self.expires_ms = now_ms() + int(self.expires_s * 1000)
        if not lines:
            return
        request = Reservation(self._op_id, lines, {}, owner=owner(), patience_s=patience(scope, blocking=blocking))
        try:
            answer = yield from scope.engine.ledger.reserve(request)
        except BaseException:
            self.status = "new"
            self._op_id = new_op_id()
            raise
        scope.engine.tell(answer.crossings)
        if isinstance(answer, Denied):
            self.status = "new"
            raise _refused(scope, answer)

    def send(self) -> Loan | None:
        """Give it to whoever writes a request, once; None for all who come later, or too late."""
        with _lock:
            if self.status != "held" or now_ms() >= self.expires_ms:
                return None
            self.status = "sent"
            _open[self.id] = self
        _watch()
        return Loan(self.id, self.amounts, self._strict, self._held)

    def unsend(self) -> None:
        """Have it back: it did not fit into the header that it was to go with."""
        with _lock:
            _open.pop(self.id, None)
            self.status = "held"

    def take_back(self, spent: Spent) -> Flow[None]:
        """Charge what was used of it, and free the rest; the caller has taken it out of those that are open."""
        scope = self._scope
        if scope is None:
            return
        late = now_ms() >= self.expires_ms
        self.status = "spent" if late else "returned"
        if late:
            yield from self._settle(None)
            return
        self.used = spent.amounts
        yield from self._settle({kind: spent.amounts.get(kind, 0) for kind in self.amounts})
        besides = {kind: amount for kind, amount in spent.amounts.items() if kind not in self.amounts and amount > 0}
        yield from _absorb(scope, besides, frozenset(spent.charged))
        if not spent.inside:
            _tally(scope, spent.amounts)

    def lose(self) -> Flow[None]:
        """Charge all of it: it did not come back."""
        self.status = "spent"
        yield from self._settle(None)

    def _settle(self, used: Mapping[str, int] | None) -> Flow[None]:
        scope = self._scope
        if scope is not None:
            settled = yield from scope.engine.ledger.settle(self._op_id, used)
            scope.engine.settled(settled)


def lend(*, tokens: int | None = None, cost: float | Decimal | str | None = None, expires_s: float = 60) -> Lent:
    """Lend so many tokens, or USD, to the process that the next request goes to.

    Write `with lend(tokens=5_000): client.post(url)`, `async with`, or `outbound_headers(url, lend=lend(...))`. It is held on every
    limit around, is good for one request to a host of `RAVI_CARRY_TO` within `expires_s` seconds, and comes back with the answer less what
    was used; what does not come back in time is charged in full. Not sent, it is given back. Raises ConfigurationError for amounts that
    are none, and on entry without `RAVI_CARRY_KEYS`; on entry BudgetExhaustedError or BudgetContendedError where it is not left.
    """
    amounts: dict[str, int] = {}
    if tokens is not None:
        amounts[Kind.TOKENS.value] = checks.count("lend(tokens)", tokens, least=1, way_out="0 would lend nothing")
    if cost is not None:
        amounts[Kind.COST.value] = checks.nano_usd("lend(cost)", cost)
    if not any(amounts.values()) or not LENT.issuperset(amounts):
        raise ConfigurationError("lend() lends nothing: give lend(tokens=5_000), lend(cost=0.05), or both.")
    return Lent(amounts, seconds("lend(expires_s)", expires_s, LONGEST_S))


def around() -> Lent | None:
    """Give the loan of the innermost `with lend(...)` block here; None in none."""
    return cast("Lent | None", otel_context.get_value(_LOAN))


def returned(url: str, value: str) -> Flow[None]:
    """Take what came back of a loan with the answer from `url`; never raises, and what is not signed or not expected changes nothing."""
    config = configured()
    if not config.keys or not config.to.has_url(url):
        return cast("Flow[None]", Done(None))
    return _take(config, value)


def take_return(url: str, headers: object) -> bool:
    """Take what came back of a loan with the headers of the answer from `url`; tell whether there was something. Never raises.

    For requests with `outbound_headers(url, lend=)`; the HTTP clients that are wrapped do it by themselves.
    """
    try:
        value = next((value for name, value in pairs_of(headers) if name == RETURN_HEADER), None)
    except Exception:  # noqa: BLE001 - whatever stands in the headers' place, it brings nothing back
        value = None
    if value is None:
        return False
    before = len(_open)
    run_sync(returned(url, value))
    return len(_open) < before


def _take(config: Configured, value: str) -> Flow[None]:
    try:
        spent = read_spent(value, config.keys)
    except (MalformedError, ValueError) as error:
        reason = str(error) if isinstance(error, MalformedError) else "malformed"
        rejected("forged" if reason == "forged" else "malformed")
        return
    with _lock:
        lent = _open.pop(spent.loan_id, None)
    if lent is None:
        rejected("unknown_loan")
        return
    try:
        yield from lent.take_back(spent)
    except Exception as error:  # noqa: BLE001 - the answer is the program's, whatever becomes of our count: the loan stays held
        swallow("lend", error)


def _refuse_too_large(scope: Scope, lines: list[Line]) -> None:
    """Refuse what would not fit if nobody held anything: asking for too much is no breach, and drains nothing."""
    for line in lines:
        account = line.account
        if not account.observe and line.minimum > account.value - account.reserved - account.used:
            scope.engine.count("denied", account)
            add_counts(scope.tallies, refused=1)
            denied = Denied(account, "too_large", account.used, account.held, line.minimum)
            raise owned(refusal.refused(denied), account)


def _refused(scope: Scope, answer: Denied) -> Exception:
    scope.engine.count("contended" if answer.reason == "contended" else "denied", answer.account)
    add_counts(scope.tallies, refused=1)
    return owned(refusal.refused(answer), answer.account)


def _absorb(scope: Scope, amounts: Mapping[str, int], charged: Collection[str]) -> Flow[None]:
    """Charge what was used besides the loan, where the borrower did not; it happened, and is not refused."""
    concerned = [each for each in scope.chain if amounts.get(each.kind) and counter_name(each.key) not in charged]
    lines = [Line(each, amounts[each.kind] if _is_counted(each) else 0, 0) for each in concerned]
    if not lines:
        return
    op_id, engine = new_op_id(), scope.engine
    begun = yield from engine.ledger.reserve(Reservation(op_id, lines, {}, spent=True))
    engine.tell(begun.crossings)
    settled = yield from engine.ledger.settle(op_id, amounts)
    engine.settled(settled)


def _is_counted(account: Account) -> bool:
    return account.nature is Nature.COUNTED


def _tally(scope: Scope, amounts: Mapping[str, int]) -> None:
    known = {kind: amounts.get(kind, 0) for kind in (Kind.INPUT_TOKENS, Kind.OUTPUT_TOKENS, *_COUNTS)}
    given, made = known[Kind.INPUT_TOKENS], known[Kind.OUTPUT_TOKENS]
    if given or made or amounts.get(Kind.COST):
        add_usage(scope.tallies, Usage(given, made), amounts.get(Kind.COST, 0))
    requests, turns, tools = (known[kind] for kind in _COUNTS)
    add_counts(scope.tallies, requests=requests, turns=turns, tool_calls=tools)
    for kind, amount in amounts.items():
        if not is_built_in(kind) and not kind.startswith("tool."):
            add_charged(scope.tallies, kind, amount)


@cache
def _watch() -> None:
    """Look for loans that did not come back, from the first one on: no other program pays for it."""
    look_for((), sweep)


def sweep() -> None:
    """Charge in full what did not come back in time."""
    if not _open:
        return
    now = now_ms()
    with _lock:
        gone = [each for each in _open.values() if each.expires_ms <= now]
        for each in gone:
            del _open[each.id]
    for each in gone:
        try:
            run_sync(each.lose())
        except Exception as error:  # noqa: BLE001 - it stays held, which is no less than spent, and the next one is another's
            swallow("lend", error)
