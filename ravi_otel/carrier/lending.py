"""Lend a part of what is left to the process that one request goes to, and take back what it did not use.

A loan is held on the caller's limits from before the request leaves, with a share of each other sum that is limited there. What came
back signed as used is charged and the rest is free again; what never came back, or came too late, is charged in full. So the callee
needs no store in common with the caller, and nothing that is lost on the way makes a limit looser.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from types import TracebackType
from typing import Final, Self, cast

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from ravi_otel import _current
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import Done, Flow, run_async, run_sync
from ravi_otel._forksafe import ForkLock, renew_in_child
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain, later, look_after, opened, sweep_with
from ravi_otel.carrier.ceilings import by_model, named, plain
from ravi_otel.carrier.configured import TO, Configured, configured
from ravi_otel.carrier.fields import pairs_of
from ravi_otel.carrier.holding import hold_all, refuse_too_large, tally
from ravi_otel.carrier.hosts import place_of
from ravi_otel.carrier.keys import VARIABLE as KEYS
from ravi_otel.carrier.lots import Lot, absorb, charge_models, limits_of, lots_of, used_of
from ravi_otel.carrier.standing import names_of, now_ms, process_here
from ravi_otel.carrier.telling import Reason, rejected, say_once
from ravi_otel.carrier.token import Loan, Spent, counter_name, read_spent
from ravi_otel.carrier.written import MalformedError, seconds
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import Kind, Limit

RETURN_HEADER: Final = "ravi-spent"
"""The response header in which what was used of a loan comes back, signed."""

LONGEST_S: Final = 86_400.0
_MOST_OPEN: Final = 100_000
_MOST_NAMED: Final = 64
"""How many of the counters it is held on go along by name; those of limits for all work come first."""

_LOAN: Final = otel_context.create_key("ravi-otel-loan")

_open: dict[str, Lent] = {}
"""Every loan that left and did not come back yet, by its id."""

_held: dict[str, Lent] = {}
"""Every other one that is held, until it leaves or is given up; one that nobody gave up in time is."""

_lock: Final = ForkLock()


@renew_in_child
def _renew() -> None:
    """Leave the parent process its loans: in a forked child there are none."""
    _open.clear()
    _held.clear()


class Lent:
    """One loan: held from `with` (or the first use) on, for one request, and back when the answer says what was used.

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
        self._process = process_here()
        self._lots: list[Lot] = []
        self._scope: Scope | None = None
        self._attachment: _current.Attachment | None = None
        self.passed_by = ""

    def __repr__(self) -> str:
        return f"<Lent {self.id[:8]} {self.status}>"

    # -- as a block ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        fresh = self.status == "new"
        try:
            run_sync(self.hold(blocking=True))
            return self._entered()
        except BaseException as error:  # nobody leaves what was not entered
            self._cut_off(error, mine=fresh)
            raise

    async def __aenter__(self) -> Self:
        fresh = self.status == "new"
        try:
            await run_async(self.hold(blocking=False))
            return self._entered()
        except BaseException as error:
            self._cut_off(error, mine=fresh)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            run_sync(self._left())
        except BaseException as cut:
            self._cut_off(cut)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await run_async(self._left())
        except BaseException as cut:
            self._cut_off(cut)
            raise

    def _entered(self) -> Self:
        self._attachment = _current.Attachment(otel_context.set_value(_LOAN, self))
        self._attachment.__enter__()
        return self

    def _left(self) -> Flow[None]:
        attachment, self._attachment = self._attachment, None
        try:
            if attachment is not None:
                attachment.restore()
        finally:
            yield from self.give_up()

    def _cut_off(self, error: BaseException, *, mine: bool = True) -> None:
        """Give it back whatever interrupted its block, a signal between any two lines, say, unless it is another block's."""
        if mine and isinstance(error, GeneratorExit):
            later(self._drop)  # a finaliser may be running, which must not take a lock
        elif mine:
            self._drop()

    def _drop(self) -> None:
        run_sync(self._left())
        scope = self._scope
        if self.status == "released" and scope is not None and self._process == process_here():
            for lot in self._lots:  # which may have been begun: once more does nothing
                run_sync(lot.release(scope))

    def give_up(self) -> Flow[None]:
        """Give back what no request took; a forked child has nothing to give."""
        with _lock.own:
            _held.pop(self.id, None)
            unsent = self.status == "held" and self._process == process_here()
            if unsent:
                self.status = "released"
        scope = self._scope
        if unsent and self.passed_by:
            say_once(
                "unlisted loan",
                f"a request to {checks.show(self.passed_by)} in a lend() block took no loan along, which was given back: "
                f"{TO} does not list that host, or the proxy on the way there. List it there.",
            )
        if unsent and scope is not None:
            for lot in self._lots:
                yield from lot.release(scope)

    # -- its way ------------------------------------------------------------------------------------------------------

    def hold(self, *, blocking: bool) -> Flow[None]:
        """Hold it on the limits around, once.

        Raises BudgetExhaustedError, or BudgetContendedError, where it is not left; then nothing is held, and no limit drains.
        """
        if self.status != "new":
            raise ConfigurationError("a loan is for one request: give each a lend() of its own.")
        self.check_here()
        if not configured().keys:
            raise ConfigurationError(f"lend() needs a key to sign loans with: set {KEYS}=ID:SECRET here, and the same where they are used.")
        drain()
        scope, _ = STATE.locate()
        scope.checkpoint()
        lots = lots_of(scope, self.amounts)
        refuse_too_large(scope, [line for line in lots[0].lines if line.account.kind in self.amounts])
        with _lock.own:
            if len(_open) >= _MOST_OPEN:
                raise ConfigurationError(f"{_MOST_OPEN} loans are open: give them back, or lend for a shorter time with lend(expires_s=).")
            self.expires_ms = now_ms() + int(self.expires_s * 1000)
            self.status, self._scope, self._lots = "held", scope, lots
        _watch()
        opened()
        try:
            yield from hold_all(scope, lots, scope.patience_s(blocking=blocking))
        except BaseException:
            self.status = "new"
            raise
        with _lock.own:
            _held[self.id] = self

    def check_here(self) -> None:
        """Raise ConfigurationError in a process that was forked from the one it belongs to."""
        if self._process != process_here():
            raise ConfigurationError("a loan belongs to the process that called lend(): call it again in the one that was forked.")

    def send(self) -> Loan | None:
        """Return it to whoever writes a request, once; None for all who come later, or too late."""
        with _lock.own:
            if self.status != "held" or self._process != process_here() or now_ms() >= self.expires_ms:
                return None
            self.status = "sent"
            _open[self.id] = self
            _held.pop(self.id, None)
        limits, models = limits_of(self._lots)
        held = names_of(line.account for lot in self._lots for line in lot.lines)
        return Loan(self.id, limits, held[:_MOST_NAMED], models)

    @property
    def is_sent(self) -> bool:
        """Whether a request took it."""
        return self.status not in {"new", "held", "released"}

    @property
    def limits(self) -> tuple[Limit, ...]:
        """List what of which limits goes with it, from when it is held."""
        return limits_of(self._lots)[0]

    def unsend(self) -> None:
        """Have it back, unless it was charged meanwhile: it did not fit into its header, or there was no connection to send it on."""
        with _lock.own:
            if _open.pop(self.id, None) is not None:
                self.status = "held"
                _held[self.id] = self

    @classmethod
    def of_rest(cls, scope: Scope, expires_s: float) -> Lent | None:
        """Make a loan of a share of each sum that is limited in `scope`, which asks for none in particular; None where none is."""
        some = bool(plain(scope)) or any(True for _ in named(scope)) or any(True for _ in by_model(scope))
        return cls({}, expires_s) if some else None

    def write_off(self) -> Flow[None]:
        """Charge all of it now, if it left and did not come back: whoever waited for the answer waits no more."""
        with _lock.own:
            lost = _open.pop(self.id, None) is not None
        if lost:
            yield from self.lose()

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
        yield from self._settle(spent)
        known = {kind for lot in self._lots[:1] for kind in lot.limits}
        besides = {kind: amount for kind, amount in spent.amounts.items() if kind not in known and amount > 0}
        yield from absorb([each for each in scope.plan.accounts() if counter_name(each.key) not in spent.charged], scope, besides)
        yield from charge_models(scope, self._lots, spent)
        if not spent.inside:
            tally(scope, spent.amounts)

    def lose(self) -> Flow[None]:
        """Charge all of it: it did not come back."""
        self.status = "spent"
        yield from self._settle(None)

    def end(self, spent: Spent) -> Flow[None]:
        """End what of it is still held; once more does nothing."""
        return self._settle(None if self.status == "spent" else spent)

    def _settle(self, spent: Spent | None) -> Flow[None]:
        scope = self._scope
        if scope is not None:
            for lot in self._lots:
                yield from lot.settle(scope, None if spent is None else used_of(lot, spent))


def lend(
    *,
    tokens: int | None = None,
    cost: float | Decimal | str | None = None,
    requests: int | None = None,
    turns: int | None = None,
    tool_calls: int | None = None,
    expires_s: float = 60,
) -> Lent:
    """Lend so many tokens, or USD, to the process that the next request goes to.

    Write `with lend(tokens=5_000): client.post(url)`, `async with`, or `outbound_headers(url, lend=lend(...))`. It is held on every
    limit around, is good for one request to a host of `RAVI_CARRY_TO` within `expires_s` seconds, and comes back with the answer less what
    was used; what does not come back in time is charged in full. Not sent, it is given back. Of each other sum that is limited a share of
    what is left goes along: of tokens and cost as large a part as the loan is, of counts a quarter or more, unless `requests`, `turns` or
    `tool_calls` say how many. Raises ConfigurationError for amounts that are none, and on entry without `RAVI_CARRY_KEYS`; on entry
    BudgetExhaustedError or BudgetContendedError where it is not left.
    """
    amounts: dict[str, int] = {}
    if tokens is not None:
        amounts[Kind.TOKENS.value] = checks.count("lend(tokens)", tokens, least=1, way_out="0 would lend nothing")
    if cost is not None:
        amounts[Kind.COST.value] = checks.nano_usd("lend(cost)", cost)
    if not any(amounts.values()):
        raise ConfigurationError("lend() lends nothing: give lend(tokens=5_000), lend(cost=0.05), or both.")
    for kind, given in ((Kind.REQUESTS, requests), (Kind.TURNS, turns), (Kind.TOOL_CALLS, tool_calls)):
        if given is not None:
            amounts[kind.value] = checks.count(f"lend({kind})", given)
    return Lent(amounts, seconds("lend(expires_s)", expires_s, LONGEST_S))


def without_loan(context: Context) -> Context:
    """Return `context` as it is around the `with lend(...)` block: for what belongs to a request that has a loan of its own."""
    return otel_context.set_value(_LOAN, None, context) if context.get(_LOAN) is not None else context


def around() -> Lent | None:
    """Return the loan of the innermost `with lend(...)` block here; None in none."""
    return cast("Lent | None", otel_context.get_value(_LOAN))


def pass_by(url: str) -> None:
    """Note that a request to a host which is not listed took nothing of the loan around along."""
    lent = around()
    place = None if lent is None else place_of(url)
    if lent is not None and place is not None:
        lent.passed_by = place[0]


def returned(url: str, value: str) -> Flow[bool]:
    """Take what came back of a loan with the answer from `url`, and tell whether there was one.

    Never raises, and what is not signed or not expected changes nothing.
    """
    config = configured()
    if not config.keys or not config.to.has_url(url):
        return cast("Flow[bool]", Done(False))  # noqa: FBT003 - its value
    return _was_taken(config, value)


def _was_taken(config: Configured, value: str) -> Flow[bool]:
    return (yield from _take(config, value)) is not None


def take_spent(value: str) -> Flow[Spent | None]:
    """Take what came back of a loan with an answer that has no headers; return what it says, None where there is none.

    Never raises, and what is not signed or not expected changes nothing.
    """
    config = configured()
    return cast("Flow[Spent | None]", Done(None)) if not config.keys else _take(config, value)


def take_return(url: str, headers: object) -> bool:
    """Take what came back of a loan with the headers of the answer from `url`; return whether there was something. Never raises.

    For requests with `outbound_headers(url, lend=)`; the HTTP clients that are wrapped do it by themselves.
    """
    try:
        value = next((value for name, value in pairs_of(headers) if name == RETURN_HEADER), None)
    except Exception:  # noqa: BLE001 - whatever stands in the headers' place, it brings nothing back
        value = None
    if value is None:
        return False
    return run_sync(returned(url, value)) is True


def _take(config: Configured, value: str) -> Flow[Spent | None]:
    """Take it; return what it says, None where it is not of a loan that was open."""
    try:
        spent = read_spent(value, config.keys)
    except (MalformedError, ValueError) as error:
        reason = str(error) if isinstance(error, MalformedError) else "malformed"
        rejected(cast("Reason", reason) if reason in {"forged", "version"} else "malformed")
        return None
    lent = None
    try:
        with _lock.own:
            lent = _open.get(spent.loan_id)
            _open.pop(spent.loan_id, None)
        if lent is None:
            rejected("unknown_loan")
            return None
        yield from lent.take_back(spent)
    except Exception as error:  # noqa: BLE001 - the answer is the program's, whatever becomes of our count: it may stay held
        swallow("lend", error)
    except BaseException as error:  # a signal's, or a cancellation: what was begun is ended at once
        if lent is not None:
            if isinstance(error, GeneratorExit):
                later(lambda: run_sync(lent.end(spent)))  # a finaliser may be running, which must not take a lock
            else:
                run_sync(lent.end(spent))
        raise
    return spent


@cache
def _watch() -> None:
    """Look for loans that did not come back, from the first one on: no other program pays for it."""
    for loans in (_open, _held):
        sweep_with(sweep, loans)
        look_after(loans)


def sweep() -> None:
    """Charge in full what did not come back in time, and give back what did not leave in time: nothing sends it any more."""
    if not (_open or _held):
        return
    now = now_ms()
    with _lock.own:
        unsent = [each for each in _held.values() if each.expires_ms <= now]
        gone = [each for each in _open.values() if each.expires_ms <= now]
        for each in gone:
            del _open[each.id]
    for each in unsent:
        run_sync(each.give_up())
    try:
        while gone:
            try:
                run_sync(gone[-1].lose())
            except Exception as error:  # noqa: BLE001 - it stays held, which is no less than spent, and the next one is another's
                swallow("lend", error)
            gone.pop()
    finally:
        _open.update((each.id, each) for each in gone)  # a signal came in between
