"""Lend a part of what is left to the process that a request goes to, and take back what it did not use.

A loan is held on the caller's limits from before the request leaves, with a share of each other sum that is limited there. What comes
back signed as used is charged and the rest is free again; what never comes back, or comes too late, is charged in full. So the callee
needs no store in common with the caller, and nothing that is lost on the way loosens a limit.
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
from ravi_otel.carrier._configuration import KEYS, TO, Configuration, configuration, place_of
from ravi_otel.carrier._inbound import Reason, count_rejected, header_pairs, warn_once
from ravi_otel.carrier._lots import Lots
from ravi_otel.carrier._remaining import Remaining, now_ms, process_id
from ravi_otel.carrier._token import LONGEST_LOAN_S, Loan, MalformedError, Spent, read_spent
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import Kind, Limit

RETURN_HEADER: Final = "ravi-spent"
"""The response header in which what was used of a loan comes back, signed."""

_MOST_OPEN: Final = 100_000
_LOAN: Final = otel_context.create_key("ravi-otel-loan")

_open: dict[str, Lent] = {}
"""Every loan that left with a request and has not come back, by its id."""

_held: dict[str, Lent] = {}
"""Every other loan that is held, until it leaves or is given back; `sweep` gives back one that has expired."""

_lock: Final = ForkLock()


@renew_in_child
def _renew() -> None:
    """Forget all loans in a forked child: they are the parent's."""
    _open.clear()
    _held.clear()


class Lent:
    """One loan for one request: held from `with` (or first use) on, and returned when the answer says what was used.

    `amounts` is what was asked for, and `used` what came back as used, None until then: by kind, tokens and counts in ones, cost in
    nano-USD. `status` is "new", "held", "sent", "returned", "spent" (charged in full) or "released" (never sent).
    """

    def __init__(self, amounts: Mapping[str, int], expires_s: float) -> None:
        self.amounts: Final = dict(amounts)
        self.expires_s: Final = expires_s
        self.id: Final = secrets.token_hex(16)
        self.expires_ms = 0
        self.status = "new"
        self.used: Mapping[str, int] | None = None
        self._process = process_id()
        self._lots: Lots | None = None
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
        """Give it back whatever interrupted its block, such as a signal between two lines, unless it is another block's."""
        if mine and isinstance(error, GeneratorExit):
            later(self._drop)  # a finaliser may be running, which must not take a lock
        elif mine:
            self._drop()

    def _drop(self) -> None:
        run_sync(self._left())
        if self.status == "released" and self._lots is not None and self._is_here():
            run_sync(self._lots.release())  # the release may have begun: once more does nothing

    def give_up(self) -> Flow[None]:
        """Give it back if no request took it; a forked child has nothing to give back."""
        with _lock.own:
            _held.pop(self.id, None)
            unsent = self.status == "held" and self._is_here()
            if unsent:
                self.status = "released"
        if unsent and self.passed_by:
            warn_once(
                "unlisted loan",
                f"a request to {checks.show(self.passed_by)} in a lend() block took no loan along, which was given back: "
                f"{TO} does not list that host, or the proxy on the way there. List it there.",
            )
        if unsent and self._lots is not None:
            yield from self._lots.release()

    def _is_here(self) -> bool:
        return self._process == process_id()

    # -- its way ------------------------------------------------------------------------------------------------------

    def hold(self, *, blocking: bool) -> Flow[None]:
        """Hold it on the limits around, once.

        Raise BudgetExhaustedError, or BudgetContendedError, where not enough is left; then nothing is held, and no limit drains.
        """
        if self.status != "new":
            raise ConfigurationError("a loan is for one request: give each a lend() of its own.")
        self.check_here()
        if not configuration().keys:
            raise ConfigurationError(f"lend() needs a key to sign loans with: set {KEYS}=ID:SECRET here, and the same where they are used.")
        drain()
        scope, _ = STATE.locate()
        scope.checkpoint()
        lots = Lots(scope, self.amounts)
        lots.refuse_too_large()
        with _lock.own:
            if len(_open) >= _MOST_OPEN:
                raise ConfigurationError(f"{_MOST_OPEN} loans are open: give them back, or lend for a shorter time with lend(expires_s=).")
            self.expires_ms = now_ms() + int(self.expires_s * 1000)
            self.status, self._lots = "held", lots
        _watch()
        opened()
        try:
            yield from lots.hold(scope.patience_s(blocking=blocking))
        except BaseException:
            self.status = "new"
            raise
        with _lock.own:
            _held[self.id] = self

    def check_here(self) -> None:
        """Raise ConfigurationError in a process that was forked from the loan's own."""
        if not self._is_here():
            raise ConfigurationError("a loan belongs to the process that called lend(): call it again in the one that was forked.")

    def send(self) -> Loan | None:
        """Return what goes along with a request, once; None for every later one, and once it has expired."""
        with _lock.own:
            if self._lots is None or self.status != "held" or not self._is_here() or now_ms() >= self.expires_ms:
                return None
            self.status = "sent"
            _open[self.id] = self
            _held.pop(self.id, None)
        return self._lots.as_loan(self.id)

    @property
    def is_sent(self) -> bool:
        """Whether a request took it."""
        return self.status not in {"new", "held", "released"}

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Return what of which limits goes with it; none before it is held."""
        return () if self._lots is None else self._lots.as_limits()[0]

    def unsend(self) -> None:
        """Hold it again, unless it was charged meanwhile: it did not fit into its header, or no connection could send it."""
        with _lock.own:
            if _open.pop(self.id, None) is not None:
                self.status = "held"
                _held[self.id] = self

    @classmethod
    def of_rest(cls, scope: Scope, expires_s: float) -> Lent | None:
        """Return a loan of a share of each sum that is limited in `scope`, and of no amount in particular; None where no sum is."""
        return cls({}, expires_s) if Remaining(scope).is_limited() else None

    def write_off(self) -> Flow[None]:
        """Charge all of it now if it left and has not come back: nobody waits for its answer any more."""
        with _lock.own:
            lost = _open.pop(self.id, None) is not None
        if lost:
            yield from self.lose()

    def take_back(self, spent: Spent) -> Flow[None]:
        """Charge what was used of it and free the rest; the caller has taken it out of those that are open."""
        if self._lots is None:
            return
        if now_ms() >= self.expires_ms:
            yield from self.lose()
            return
        self.status, self.used = "returned", spent.amounts
        yield from self._lots.settle(spent)
        yield from self._lots.charge_beyond(spent)

    def lose(self) -> Flow[None]:
        """Charge all of it: it did not come back in time."""
        self.status = "spent"
        yield from self._settle(None)

    def end(self, spent: Spent) -> Flow[None]:
        """End what of it is still held; once more does nothing."""
        yield from self._settle(None if self.status == "spent" else spent)

    def _settle(self, spent: Spent | None) -> Flow[None]:
        if self._lots is not None:
            yield from self._lots.settle(spent)


def lend(
    *,
    tokens: int | None = None,
    cost: float | Decimal | str | None = None,
    requests: int | None = None,
    turns: int | None = None,
    tool_calls: int | None = None,
    expires_s: float = 60,
) -> Lent:
    """Lend tokens, or USD, to the process that the next request goes to.

    Write `with lend(tokens=5_000): client.post(url)`, `async with`, or `outbound_headers(url, lend=lend(...))`. The loan is held on every
    limit around and is good for one request to a host of `RAVI_CARRY_TO` within `expires_s` seconds. The answer says what was used of it,
    and the rest is free again; what does not come back in time is charged in full, and what was never sent is given back. A share of every
    other limited sum goes along: of tokens and cost as large a part as the loan is, of counts a quarter or more, unless `requests`, `turns`
    or `tool_calls` say how many.

    Raise ConfigurationError for an amount that is none, and on entry without `RAVI_CARRY_KEYS`; on entry BudgetExhaustedError or
    BudgetContendedError where not enough is left.
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
    return Lent(amounts, seconds("lend(expires_s)", expires_s, LONGEST_LOAN_S))


def seconds(parameter: str, value: object, most: float) -> float:
    """Return `value` as seconds; raise ConfigurationError unless it is a number above 0 and up to `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise ConfigurationError(f"{parameter}={checks.show(value)} must be seconds above 0, up to {most:.0f}, such as 60.")
    return float(value)


def without_loan(context: Context) -> Context:
    """Return `context` without the loan of its `with lend(...)` block: for a request that has a loan of its own."""
    return otel_context.set_value(_LOAN, None, context) if context.get(_LOAN) is not None else context


def current_loan() -> Lent | None:
    """Return the loan of the innermost `with lend(...)` block; None outside of any."""
    return cast("Lent | None", otel_context.get_value(_LOAN))


def note_unlisted(url: str) -> None:
    """Note that a request to a host that is not listed did not take the current loan along."""
    lent = current_loan()
    place = None if lent is None else place_of(url)
    if lent is not None and place is not None:
        lent.passed_by = place[0]


def returned(url: str, value: str) -> Flow[bool]:
    """Take back the loan that the answer from `url` returns in its header's `value`; return whether it was one.

    Never raise; what is not signed or not expected changes nothing.
    """
    config = configuration()
    if not config.keys or not config.to.has_url(url):
        return cast("Flow[bool]", Done(False))  # noqa: FBT003 - its value
    return _was_taken(config, value)


def _was_taken(config: Configuration, value: str) -> Flow[bool]:
    return (yield from _take(config, value)) is not None


def take_spent(value: str) -> Flow[Spent | None]:
    """Take back the loan that an answer without headers returns in `value`; return what it says, None where it was none.

    Never raise; what is not signed or not expected changes nothing.
    """
    config = configuration()
    return cast("Flow[Spent | None]", Done(None)) if not config.keys else _take(config, value)


def take_return(url: str, headers: object) -> bool:
    """Take back the loan that the headers of the answer from `url` return; return whether there was one. Never raise.

    It is for requests made with `outbound_headers(url, lend=)`; wrapped HTTP clients do it by themselves.
    """
    try:
        value = next((value for name, value in header_pairs(headers) if name == RETURN_HEADER), None)
    except Exception:  # noqa: BLE001 - whatever stands in the headers' place, it brings nothing back
        value = None
    if value is None:
        return False
    return run_sync(returned(url, value)) is True


def _take(config: Configuration, value: str) -> Flow[Spent | None]:
    """Return what it says, None where it is not of an open loan."""
    try:
        spent = read_spent(value, config.keys)
    except (MalformedError, ValueError) as error:
        reason = str(error) if isinstance(error, MalformedError) else "malformed"
        count_rejected(cast("Reason", reason) if reason in {"forged", "version"} else "malformed")
        return None
    lent = None
    try:
        with _lock.own:
            lent = _open.get(spent.loan_id)
            _open.pop(spent.loan_id, None)
        if lent is None:
            count_rejected("unknown_loan")
            return None
        yield from lent.take_back(spent)
    except Exception as error:  # noqa: BLE001 - the answer is the program's, whatever becomes of our count
        swallow("lend", error)
    except BaseException as error:  # a signal or a cancellation: end at once what was begun
        if lent is not None:
            if isinstance(error, GeneratorExit):
                later(lambda: run_sync(lent.end(spent)))  # a finaliser may be running, which must not take a lock
            else:
                run_sync(lent.end(spent))
        raise
    return spent


@cache
def _watch() -> None:
    """Sweep from the first loan on, so that no other program pays for it."""
    for loans in (_open, _held):
        sweep_with(sweep, loans)
        look_after(loans)


def sweep() -> None:
    """Charge in full what did not come back in time, and give back what did not leave in time."""
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
