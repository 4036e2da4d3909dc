"""Follow one model call from its request to its settlement: locate its scope, reserve, send, read the answer, settle, emit its end.

`ModelCall` is the one mutable object of a call, whoever sends it: a wrapped client, a request that goes around the wrapper, a
message on a socket, a client of the program's own. What only some calls need is in modules of its own: `charging` (caps of strict
limits, retries, streams that reach what is held for them), `background_calls` (answers made in the background), `inferred_tools` (tools
that ran unseen), `waiting` (agents that wait for their slot).
"""

from __future__ import annotations

import sys
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]  # the public one raises where there is none
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self

from ravi_otel._current import entered
from ravi_otel._enforcement.errors_text import belongs_to
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.plan import NOTHING, Estimate, LastCallClaim, Plan
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.scope_limits import LONGEST_WAIT_S
from ravi_otel._enforcement.usage_counters import add_counts, add_request, add_usage
from ravi_otel._flow import Done, Flow, around, owner, run_async, run_sync
from ravi_otel._runtime.background_calls import AWAITED, CONVERSATIONS, key_of, write_usage
from ravi_otel._runtime.charging import MOST_TEXT, Attempts, Capped, Counting, Sizing, StreamLimits, charge_rest
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import ABANDONED, UnderWay, drain, end_dropped, later
from ravi_otel._runtime.waiting import pause, pause_after, wait_for_lost_slot
from ravi_otel.errors import AgentPausedError, BudgetContendedError, BudgetError, RaviError
from ravi_otel.hooks._events import CallRecord, CountEvent, RetryRecord, Status
from ravi_otel.hooks._listeners import Entered, Guarded, from_signal, swallow
from ravi_otel.policy._limits import Kind
from ravi_otel.policy._usage import Call, Reply, Usage

REFUSED: Final = "ravi.limit_exceeded"
"""The `error.type` of a call that a limit refused."""

_CHAINED: Final = "responses"
"""The endpoint whose answers a later request can go on with."""

_COST: Final = Kind.COST.value
_PRIORITY: Final = "priority"
"""The service tier that costs more than the standard one."""

_LONGEST_CHAIN: Final = 32
_UNSCOPED: Final = CountEvent("unscoped", 1)
_NOTHING: Final = Usage()


@dataclass(frozen=True, slots=True)
class SendFailure:
    """How a send failed, independent of the client library.

    `sent` is False when no byte left this process; `billed` False when the provider refused without charging; `usage`
    is what the error itself reports, or what of a stream was received; `reply` is an answer that came all the same.
    With `at_grant` more may have been used than was seen: what was held is charged to the limits. `status` is HTTP's.
    """

    error_type: str
    sent: bool = True
    billed: bool = True
    usage: Usage | None = None
    reply: Reply | None = None
    at_grant: bool = False
    status: int | None = None


class CallSender(Sizing, Protocol):
    """What sends one call, and can read what comes back: a client, or a connection."""

    def send(self, live: ModelCall | None) -> Any:
        """Send it from synchronous code; without a call its attempts are nobody's."""
        ...

    async def send_async(self, live: ModelCall | None) -> Any:
        """Send it from a coroutine."""
        ...

    def read(self, live: ModelCall, result: Any) -> Reply | None:
        """Read a complete result; None of one that is still open, such as a stream, which is followed and ends `live` later."""
        ...

    def read_failure(self, live: ModelCall, error: BaseException) -> SendFailure:
        """Return how the send failed."""
        ...


_NEW, _ADMITTED, SENT, _ANSWERING = range(4)
"""How far a call has come, unless it has ended."""

GIVE_WAY: Final[ContextVar[Callable[[Call], object] | None]] = ContextVar("ravi_otel_unseen_call", default=None)
"""How an enclosing `UnseenCall`, which nobody can see into, gives way to the call that begins here; None outside any."""


class ModelCall(UnderWay):
    """The life of one model call: how far it has come, what it was granted, and its end, exactly once.

    | method | in state | leads to |
    |---|---|---|
    | `start(call)`, `start_admitted(call, sizing)` | | new; admitted |
    | `begin()` | new | the same; `admit` sends it where nobody has |
    | `admit(sizing, blocking=)` | new | admitted; or a refusal, after which `failed` or `fail` ends it |
    | `attempt(n)`, `retrying(retry, sent=)`, `follow(status, why)` | admitted, sent | the same |
    | `sent()` | admitted, sent | sent: bytes may have left |
    | `conclude(sender, result)` | admitted, sent | ended, or answering while the result is open |
    | `chunk(at_ns)`, `content(at_ns)` | answering | the same |
    | `answered(reply)` | admitted, sent, answering | ended |
    | `failed(sender, error)`, `fail(error, failure, reply)`, `end_with_process()` | any | ended |
    | `leave()` | any | the same, without the context that listeners made current |
    | `collect(reply, at)` | ended, kept for a later look | the same |

    In state ended `answered`, `failed` and `fail` change nothing, whoever sends them again, from whatever thread: the first one
    settles. A signal handler may raise between any two lines, and what was held is given back or charged all the same.
    """

    __slots__ = (
        "_asked",
        "_entered",
        "_expected",
        "_handled_before",
        "_held",
        "_last_chunk_ns",
        "_plan",
        "_settled",
        "_settler",
        "_stage",
        "_tools_refused",
        "_unknown",
        "attempts",
        "capped",
        "ended_ns",
        "holds",
        "last_call_claim",
        "op_id",
        "record",
        "scope",
    )

    def __init__(self, scope: Scope, call: Call) -> None:
        self.scope = scope
        # The lists are given, since a dataclass would call a factory for each.
        self.record = CallRecord(call, scope.facts, new_op_id(), scope.engine.clock.monotonic_ns(), retries=[], marks={})
        self.op_id = self.record.op_id  # what the ledger knows it by: another one where it is asked again
        self.attempts: Attempts | None = None  # once one of them failed
        self.capped: Capped | None = None  # by a strict limit
        self.last_call_claim: LastCallClaim | None = None  # in a `wrap_up` block
        self.holds: Sequence[tuple[Line, int]] = ()  # what was held, of a call that streams or meets a strict limit
        self.ended_ns: int | None = None  # when it really ended, on the engine's clock, where that is found out later
        self._stage = _NEW
        self._plan: Plan | None = None  # that it was admitted by
        self._expected: Estimate | None = None  # what it may use, once somebody asks
        self._entered: Entered | None = None  # what listeners have made current
        self._handled_before: BaseException | None = None  # the exception that was being handled when it began
        self._tools_refused: RaviError | None = None  # what the tools whose results it brings have against it
        self._asked = False  # the ledger was asked, and may hold something for it
        self._held = False
        self._settled = False
        self._settler: dict[None, object] = {}  # whoever came first to end it, and alone settles it
        self._unknown = 0  # 1 while it is counted as unreported, because its answer is made in the background
        self._last_chunk_ns = 0

    @classmethod
    def start(cls, call: Call) -> Self | None:
        """Begin a call of the running code's scope, before any event of it; None when even that fails, and it goes out unseen.

        Raises what a signal's handler raises meanwhile.
        """
        try:
            drain()
            give_way = GIVE_WAY.get()
            if give_way is not None:
                give_way(call)
            scope: Any = entered()
            scoped = scope is not None
            if not scoped:
                scope, scoped = STATE.locate()
            started = cls(scope, call)
            started._handled_before = sys.exc_info()[1]
            if call.tool_results or call.offers_tools:
                started._infer_tools()
            if not scoped and call.generative:
                scope.engine.listeners.counted(_UNSCOPED)
        except Exception as bug:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("begin", bug)
            return None
        return started

    @classmethod
    def start_admitted(cls, call: Call, sizing: Sizing | None = None) -> Self | None:
        """Start and admit a call that somebody else sends, waiting in line only where a thread may; None when it cannot begin.

        Without `sizing` nobody knows how large it can be, and a strict limit refuses it. Raises what stands against it. Its span is
        opened, and never current.
        """
        held = cls.start(call)
        if held is None:
            return None
        held.begin()
        held.leave()
        try:
            wait = held.admit(sizing, blocking=True)
            if wait is not None:
                run_sync(wait)
        except BaseException as error:
            held.fail(error, SendFailure(type(error).__qualname__, sent=False))
            raise
        return held

    def begin(self) -> None:
        """Emit its start; what listeners make current is so until `leave`."""
        self._entered = self.scope.engine.listeners.call_started(self.record)

    @property
    def was_sent(self) -> bool:
        """Whether bytes of it may have left this process."""
        return self._stage >= SENT

    def _infer_tools(self) -> None:
        """Charge the tools whose results it brings; a bug in that leaves the call as seen and limited as any."""
        record = self.record
        with Guarded("inferring"):
            if record.call.tool_results:
                self._tools_refused = INFERRING.answered(self.scope, record)
            if record.call.offers_tools:
                INFERRING.offered(self.scope)

    # -- before it is sent ----------------------------------------------------------------------------------------

    def admit(self, sizing: Sizing | None = None, *, blocking: bool) -> Flow[None] | None:
        """Emit its start, and reserve what it may use; return None when it may go now, else the flow that waits until it may.

        `sizing` bounds its size, which only strict limits need. `blocking` says that synchronous code will drive the flow. Raises, here
        or in the flow, the refusal of a limit, a deadline or a cancellation.
        """
        scope, record = self.scope, self.record
        try:
            if self._entered is None:
                self._entered = scope.engine.listeners.call_started(record)  # `begin`, without the call
            scope.checkpoint(record)
            return self._reserve(sizing, blocking=blocking)
        except AgentPausedError as refused:
            return self._wait_for_slot(wait_for_lost_slot(scope, record, refused), sizing, blocking=blocking)
        except Exception as bug:
            if not self._let_pass(bug):
                raise
            return None

    def _let_pass(self, bug: Exception) -> bool:
        """Send a call that a bug of ours kept from being judged; False for a refusal, and for what a signal raised: the caller's own."""
        if isinstance(bug, RaviError) or from_signal(bug):
            return False
        swallow("admit", bug)
        self._stage = _ADMITTED
        return True

    def _wait_for_slot(self, passing: Flow[None], sizing: Sizing | None, *, blocking: bool) -> Flow[None]:
        """Wait with an agent that lost its slot and stands in line for it; what ends that wait is the caller's own."""
        yield from passing
        wait = self.admit(sizing, blocking=blocking)
        if wait is not None:
            yield from wait

    def _reserve(self, sizing: Sizing | None, *, blocking: bool) -> Flow[None] | None:
        """Reserve at every account of the plan; return the flow that waits where others hold what it needs."""
        refused, self._tools_refused = self._tools_refused, None
        if refused is not None:
            raise refused
        scope, record = self.scope, self.record
        call = record.call
        if not call.generative:
            self._admitted(None)
            return None
        if scope.wrapping is not None and self.last_call_claim is None:
            self.last_call_claim = scope.claim_last_call()
        plan = self._plan = scope.plan
        expected = self.expectation() if plan.sized else NOTHING
        if plan.strict:
            self.capped = Capped.of(scope, call, sizing, record)
        lines = plan.lines(call, expected, None if self.capped is None else self.capped.worst) if plan.chain else []
        if plan.priced and expected.cost is None:
            scope.observed_unpriced(record)
        if not lines:  # none of them counts such a call
            self._admitted(None)
            return None
        waits_s = LONGEST_WAIT_S
        if plan.clocks or (blocking and _get_running_loop() is not None):
            waits_s = scope.patience_s(blocking=blocking)
        # By place, which costs half: the last two say whether it wraps up, and whether what is expected is sure.
        wraps_up, enclosing = self.last_call_claim is not None, (*plan.carved, *around())
        request = Reservation(
            self.op_id,
            lines,
            owner(),
            waits_s,
            False,  # noqa: FBT003 - not spent yet
            scope.on_stop,
            end_dropped,
            enclosing,
            wraps_up,
            expected.sure,
        )
        self._asked = True
        answering = scope.engine.ledger.reserve(request)
        if not isinstance(answering, Done):
            return self._wait_in_line(answering, sizing, blocking=blocking)
        self._admitted(answering.value)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # as in `run_sync`
        return None

    def _wait_in_line(self, answering: Flow[Grant | Denied], sizing: Sizing | None, *, blocking: bool) -> Flow[None]:
        """Wait for the ledger's answer; an agent that lost its slot meanwhile waits for that too, and reserves again under another id."""
        answer = yield from answering  # what ends the wait is the caller's own
        scope, record = self.scope, self.record
        lost: Flow[None] | None = None
        try:
            scope.recheck_after_wait(answer, self.op_id, record)
            self._admitted(answer)
        except AgentPausedError as refused:
            lost = wait_for_lost_slot(scope, record, refused)
        except Exception as bug:
            if not self._let_pass(bug):
                raise
        if lost is not None:
            self.op_id = new_op_id()
            yield from self._wait_for_slot(lost, sizing, blocking=blocking)

    def expectation(self) -> Estimate:
        """Return what the call is expected to use, worked out once, when it is first needed."""
        if self._expected is None:
            call, scope, plan = self.record.call, self.scope, self._plan
            card = learned = None
            if plan is not None and plan.chain:  # else nobody is asked for anything: what is expected is the request alone
                if call.output_cap is None:
                    learned = scope.engine.learned.p95(scope.facts.agent_name, call.model)
                if plan.priced:  # at the dear tier where that was asked for; a cheap one may be answered at the standard price
                    tier = _PRIORITY if call.parameters.get("service_tier") == _PRIORITY else None
                    card = scope.engine.prices.card(call.seller or call.provider, call.model, tier)
            self._expected = Estimate.of(call, card, learned)
        return self._expected

    def _admitted(self, answer: Grant | Denied | None) -> None:
        """Note the ledger's answer, None where it was not asked; raise a refusal."""
        record, scope = self.record, self.scope
        if answer is not None:
            self._held = not isinstance(answer, Denied)
            if isinstance(answer, Denied) or answer.crossings or answer.observed is not None:  # nearly never
                answer = scope.accept(answer, record)
            record.reservation = answer
            if STATE.options.full:
                record.granted = answer.granted
            if self.capped is not None:
                self.capped.granted(answer, record)
            if record.call.stream or self.capped is not None:
                self.holds = answer.holds
        if record.call.generative:
            add_request(scope.tallies, turn=record.call.turn)
        record.decision = record.decision or "admitted"
        self._stage = _ADMITTED

    def leave(self) -> None:
        """Give back the context that listeners have changed; again does nothing."""
        self._handled_before = None
        if self._entered is not None:
            self._entered.leave()

    # -- while it is sent -----------------------------------------------------------------------------------------

    def attempt(self, retries_taken: int) -> None:
        """Pay for one more attempt, right before its request is built; raise what refuses it.

        The first is covered by the call's own reservation.
        """
        if retries_taken <= 0 or not self.record.call.generative:
            return
        self.scope.checkpoint(self.record)
        self._retries().pay(None if self.capped is None else self.holds)

    def retrying(self, retry: RetryRecord, *, sent: bool) -> None:
        """Note that an attempt failed and another will follow."""
        self._retries().failed(sent=sent, answered=retry.status is not None)
        self.record.retries.append(retry)
        self.scope.engine.listeners.call_retried(self.record, retry)

    def follow(self, status: int | None, why: str, *, sent: bool = True) -> None:
        """Pay for one more request, after the answer `status` to the latest one, None for none; raise when it may not be sent."""
        self.retrying(RetryRecord(len(self.record.retries) + 1, status, None, why), sent=sent)
        self.attempt(1)

    def _retries(self) -> Attempts:
        if self.attempts is None:
            self.attempts = Attempts(self.scope, self.record)
        return self.attempts

    def sent(self) -> None:
        """Note that a request of it was built: from here on bytes may leave."""
        self._stage = max(self._stage, SENT)

    # -- while it is answered -------------------------------------------------------------------------------------

    def conclude(self, sender: CallSender, result: Any) -> None:
        """Settle a complete result, or leave an open one to whoever follows it; a bug in reading it never reaches the program."""
        try:
            reply = sender.read(self, result)
            if reply is None:
                self._stage = _ANSWERING
                return
        except Exception as error:  # noqa: BLE001 - the result is the user's whatever we make of it
            swallow("read", error)
            reply = Reply()
        finally:
            if self._entered is not None:  # `leave`, without the call
                self._entered.leave()
            self._handled_before = None
        try:
            self.answered(reply)
        except Exception as error:  # noqa: BLE001 - the same, if only of a stack that is as deep as it may be
            swallow("settle", error)

    def stream_limits(self, counting: Counting) -> StreamLimits | None:
        """Return what holds its open stream to its limits; None where nothing can end the stream but a stop of its scope."""
        card = None if self._expected is None else self._expected.card
        limits = StreamLimits(self.scope, self.record, self.op_id, self.holds, counting, card)
        if not limits.can_end_it:
            return None
        counting.keep_text(MOST_TEXT)
        return limits

    def chunk(self, at_ns: int) -> None:
        """Note that a chunk of a stream came at this reading of the engine's clock: the first, and each of them where each is timed."""
        record, came = self.record, at_ns - self.record.started_ns
        if record.first_chunk_ns is None:
            record.first_chunk_ns = came
        else:
            self.scope.engine.listeners.chunk_came(record, came - self._last_chunk_ns)
        self._last_chunk_ns = came

    def content(self, at_ns: int) -> None:
        """Note that the first of a stream's content came at this reading of the engine's clock."""
        self.record.first_content_ns = at_ns - self.record.started_ns

    # -- how it ends ----------------------------------------------------------------------------------------------

    def answered(self, reply: Reply) -> None:
        """Settle with what the provider reported; when it reported nothing, at what was held."""
        me = object()
        try:
            if self._settler.setdefault(None, me) is not me:  # `_is_settler`, without the call
                return
            if self.attempts is not None:
                self.attempts.settle()
            status: Status = "ok" if reply.error_type is None else "error"
            if (reply.pending or reply.awaited) and self._defer(reply, status, reply.error_type):
                return
            record = self.record
            call, spent = record.call, reply.usage
            if spent is None and call.expected is not None and call.expected.characters:
                spent = self._usage_of_speech(call.expected.characters)
            record.usage = spent
            if spent is None and self._held and not call.job:  # what a job will use is not what was held of it
                record.usage = self.expectation().usage()
            self._close(status, reply, spent, reply.error_type)
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("settle", error)
        finally:
            ended = self._settled and self.attempts is None
            if not ended and self._settler.get(None) is me:  # else `fail` is to come
                self._leave_nothing_held()

    def failed(self, sender: CallSender, error: BaseException) -> Flow[BaseException]:
        """End a call whose sending raised `error`; return that, or what is to be raised from it, because we caused it.

        A refusal is held back for a moment where the program asked for that. Whoever drives this must let go of the call afterwards:
        it knows the error, whose traceback knows the frame that raises it.
        """
        instead = error
        try:
            with Guarded("ending"):  # our own bug never hides the user's error
                if self._is_dropped(error):  # perhaps by a finaliser, where no lock may be taken
                    later(partial(self._fail, sender, GeneratorExit("the call was dropped before its end")))
                    return error
                if self.capped is not None:
                    instead = self.capped.instead_of(error, self.record) or error
            self._fail(sender, instead)
            pause_s = pause_after(self.scope.engine, instead)
            if pause_s > 0:
                yield pause(pause_s)
            return instead
        finally:
            self.leave()

    def _is_dropped(self, error: BaseException) -> bool:
        """Whether a coroutine was closed, whatever the client made of it; what was being handled before is none of its doing."""
        links = _LONGEST_CHAIN
        at: BaseException | None = error
        while at is not None and at is not self._handled_before and links:
            if isinstance(at, GeneratorExit):
                return True
            at, links = at.__context__, links - 1
        return False

    def _fail(self, sender: CallSender, error: BaseException) -> None:
        failure = SendFailure(type(error).__qualname__, sent=self.was_sent)
        with Guarded("ending"):  # our own bug never hides the user's error
            failure = sender.read_failure(self, error)
        with Guarded("settle"):
            self.fail(error, failure)

    def fail(self, error: BaseException, failure: SendFailure, reply: Reply | None = None) -> None:
        """Settle or release what a failed send held."""
        me = object()
        try:
            if not self._is_settler(me):
                return
            self.record.error = error
            if self._stage < _ADMITTED:
                self._end_refused(error)
            else:
                self._settle_failed(error, failure, reply)
        except Exception as bug:  # noqa: BLE001 - our own bug never hides the user's error
            swallow("settle", bug)
        finally:
            if self._is_settler(me):
                self._leave_nothing_held()

    def end_with_process(self) -> None:
        """See `UnderWay.end_with_process`."""
        if self._entered is not None:
            self.fail(GeneratorExit("the process was told to end"), SendFailure(ABANDONED, sent=self.was_sent))

    def _is_settler(self, me: object) -> bool:
        """Whether it is `me` who settles it: the first to ask is, and may ask again, since a signal's exception may lose the answer.

        It is one step of a dict, which neither a thread nor a signal's handler can interrupt.
        """
        return self._settler.setdefault(None, me) is me

    def _leave_nothing_held(self, *, unsent: bool = False) -> None:
        """End the operation whatever interrupted its settlement: a signal may raise between any two lines."""
        try:
            if self.attempts is not None:
                self.attempts.leave_nothing_held()
            if self._asked and not self._settled:
                ledger, op_id = self.scope.engine.ledger, self.op_id
                run_sync(ledger.settle(op_id, None) if self._stage >= _ADMITTED and not unsent else ledger.release(op_id))
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("settle", error)

    # -- its settlement -------------------------------------------------------------------------------------------

    def _close(
        self,
        status: Status,
        reply: Reply,
        spent: Usage | None,
        error_type: str | None,
        *,
        at_grant: bool = False,
        doubted: bool = False,
    ) -> None:
        """Charge, settle and emit the end of a call that was sent."""
        record, engine = self.record, self.scope.engine
        call = record.call
        # What a whole answer really used cannot be seen from outside: reasoning is not streamed.
        guessed = at_grant or (status == "ok" and spent is not None and spent.source == "estimated")
        self._settle(reply, spent, record, guessed=guessed, doubted=doubted)
        if self._held:
            self._settled = True
            if self.capped is not None:
                self.capped.ended(record, reply, engine)
            if spent is not None and spent.source == "reported" and spent.output_tokens and call.turn and not record.truncated_by_limit:
                each, cap = -(-spent.output_tokens // call.choices), call.output_cap if record.output_cap is None else record.output_cap
                if cap is None or each <= cap:
                    engine.learned.observe(record.facts.agent_name, call.model, each)
        record.reply, record.error_type = reply, error_type
        self._emit_ended(status)

    def _settle(self, reply: Reply, spent: Usage | None, at: CallRecord, *, guessed: bool = False, doubted: bool = False) -> None:
        """Charge what was used, settle what was held, and note what a later request may go on with."""
        call, engine = self.record.call, self.scope.engine
        cost = self._charge(reply, spent) if call.generative else None
        if call.endpoint == _CHAINED:
            CONVERSATIONS.heard(call, reply.id, reply.answers)
        if self._held and self._plan is not None:
            messages = None if call.messages is None else call.messages + reply.answers
            actual = None if spent is None else self._plan.amounts(spent, cost, messages)
            if doubted and actual is not None and not guessed:
                charge_rest(engine, self.holds, actual, at)
            engine.settle(self.op_id, actual, at, guessed=guessed)

    def _charge(self, reply: Reply, spent: Usage | None) -> int | None:
        """Add tokens and cost to the usage counters of every scope around, or note that they are unknown; return nano-USD, None unknown."""
        record, engine, tallies = self.record, self.scope.engine, self.scope.tallies
        if spent is not None and not (spent.total_tokens and (spent.input_tokens or spent.output_tokens)):
            if spent.total_only:
                add_counts(tallies, unsplit_tokens=spent.total_tokens)
                if self._held:  # what limits of a part of it are charged
                    record.charged, record.charged_nano = self.expectation().usage(), self.expectation().cost
                spent = None
            elif not spent.tokenless:
                return 0  # the provider refused the call, and billed nothing
        if spent is None:
            return self._charge_unreported(reply)
        call, cost, source, dated = record.call, None, None, None
        try:
            cost, source, dated = engine.prices.cost(call.seller or call.provider, reply.model, call.model, spent, reply.service_tier)
        except Exception as error:  # noqa: BLE001 - a price that cannot be had is unknown, and the call goes on
            swallow("pricing", error)
        if record.usage is None:  # charged for safety, but what a failed call really cost is not known
            record.charged, record.charged_nano = spent, cost
        else:
            record.cost_nano, record.price_date = cost, dated
            record.cost_source = "assumed" if call.provider_assumed and source not in (None, "override") else source
        add_usage(tallies, spent, cost)
        if cost is None:
            engine.count("unpriced")
        return cost

    def _charge_unreported(self, reply: Reply) -> int | None:
        """Charge an answer that came without its usage: nothing where the model is free, else the usage is counted as unknown."""
        record, prices = self.record, self.scope.engine.prices
        call = record.call
        card = prices.card(call.seller or call.provider, reply.model) or prices.card(call.seller or call.provider, call.model)
        if card is None or not card.is_free:
            add_counts(self.scope.tallies, unreported_calls=1)
            return None
        _, source, record.price_date = prices.cost(call.seller or call.provider, reply.model, call.model, _NOTHING, None)
        record.cost_nano = 0
        record.cost_source = "assumed" if call.provider_assumed and source != "override" else source
        add_usage(self.scope.tallies, _NOTHING, 0)
        return 0

    def _usage_of_speech(self, characters: int) -> Usage | None:
        """Return the usage of speech that is priced by the characters of its text, since its answer reports none; None for any other."""
        usage, call = Usage(characters=characters, source="estimated"), self.record.call
        card = self.scope.engine.prices.card(call.seller or call.provider, call.model)
        return None if card is None or card.cost_nano(usage) is None else usage

    def _emit_ended(self, status: Status) -> None:
        record = self.record
        record.status, record.expected = status, self._expected
        now = self.scope.engine.clock.monotonic_ns()
        if self.ended_ns is not None:
            record.late_ns, now = now - self.ended_ns, self.ended_ns
        record.duration_ns = now - record.started_ns
        if record.call.offers_tools:
            INFERRING.asked(self.scope, record)
        self.scope.engine.listeners.call_ended(record)

    # -- of one that failed, or was refused -----------------------------------------------------------------------

    def _settle_failed(self, error: BaseException, failure: SendFailure, reply: Reply | None) -> None:
        status: Status = "error" if isinstance(error, Exception) else "cancelled"
        error_type, self.record.http_status = failure.error_type, failure.status
        if isinstance(error, RaviError):  # a retry that was refused
            self.record.decision, error_type = "denied", REFUSED
        add_counts(self.scope.tallies, errors=int(status == "error"))
        if not failure.sent and self._release_unsent(status, error_type):
            return
        if self.attempts is not None:
            self.attempts.settle()
        answer = reply or failure.reply or Reply()
        if (answer.pending or answer.awaited) and self._defer(answer, status, error_type):
            return
        self.record.usage = failure.usage
        spent = _NOTHING if not failure.billed else failure.usage or self.expectation().floor()
        self._close(status, answer, spent, error_type, at_grant=failure.at_grant, doubted=self._doubted(failure, answer))

    def _doubted(self, failure: SendFailure, answer: Reply) -> bool:
        """Whether more may be billed than was seen, which strict limits are charged for: what came is a lower bound."""
        if self.capped is None:
            return False
        attempts = self.attempts
        if not failure.sent or (attempts is not None and attempts.between):  # nothing was sent since that attempt
            return attempts is not None and attempts.doubtful
        if failure.status is not None or not failure.billed:
            return False
        if failure.usage is None or failure.usage.source != "reported":
            return True
        reasons = answer.finish_reasons
        return failure.reply is None and ("error" in reasons or len(reasons) < self.record.call.choices)

    def _release_unsent(self, status: Status, error_type: str) -> bool:
        """Release what the last attempt reserved, since it never left; True when that was the whole call, which has ended."""
        if self.attempts is not None and self.attempts.take_back():
            return False
        if self.last_call_claim is not None:
            self.last_call_claim.give_back()
        if self._held:
            run_sync(self.scope.engine.ledger.release(self.op_id))
            self._settled = True
        call = self.record.call
        if call.generative:
            add_counts(self.scope.tallies, requests=-1, turns=-int(call.turn))
            self.record.requests -= 1
        self.record.error_type = error_type
        self._emit_ended(status)
        return True

    def _end_refused(self, error: BaseException) -> None:
        record = self.record
        record.requests = 0
        if self.last_call_claim is not None:
            self.last_call_claim.give_back()
        if not isinstance(error, RaviError):  # cancelled while it waited in line
            record.error_type = type(error).__name__
            self._emit_ended("error" if isinstance(error, Exception) else "cancelled")
            return
        record.decision, record.error_type = "denied", REFUSED
        if isinstance(error, BudgetError):
            record.limit_kind = record.limit_kind or error.limit_kind
            record.limit_reason = record.limit_reason or error.reason
            if error.reason == "unpriced_model":  # no ledger has seen it
                self.scope.engine.count("unpriced")
                accounts = self.scope.plan.accounts()
                account = next((one for one in accounts if one.kind == _COST and belongs_to(one.facts.scope_id, error)), None)
                if account is not None:
                    self.scope.engine.count("denied", account)
                    record.limit_scope = account.facts.kind
        if not isinstance(error, BudgetContendedError):
            add_counts(self.scope.tallies, refused=1)
        with Guarded("chain"):
            record.chain = self.scope.plan.standing(record.call.model)
        self._emit_ended("refused")

    # -- of one whose answer is made in the background ------------------------------------------------------------

    def _defer(self, reply: Reply, status: Status, error_type: str | None) -> bool:
        """Leave the settlement to a later look, or settle what an earlier request began; False for any other answer."""
        record, call = self.record, self.record.call
        key = key_of(call, reply.id)
        if reply.pending and call.generative and not (reply.awaited and AWAITED.waits(key)):
            self._await_usage(reply, status, error_type)
            return True
        if not reply.awaited:
            return False
        earlier = None if reply.pending else AWAITED.take(key, reply)
        if earlier is None and call.generative and not reply.pending:
            return False
        if earlier is not None:
            write_usage(record, earlier.collect(reply, record))
        if self._held:  # it went on with what another began, and that one pays for: no more than itself
            self.scope.engine.settle(self.op_id, self.scope.plan.amounts(_NOTHING, 0, None), record)
            self._settled = True
        record.reply, record.error_type = reply, error_type
        self._emit_ended(status)
        return True

    def _await_usage(self, reply: Reply, status: Status, error_type: str | None) -> None:
        record = self.record
        record.reply, record.error_type = reply, error_type
        record.call.size = record.call.input_estimate  # whose body need not be kept for that
        key = key_of(record.call, reply.id)
        early = AWAITED.early(key)
        if early is not None:
            self.collect(early, record)
        self._emit_ended(status)  # first: from here on a look in another thread may write its usage into the record
        if early is None:
            self._unknown = 1
            add_counts(self.scope.tallies, unreported_calls=1)  # unknown is not 0
            AWAITED.keep(key, self)
        self._settled = True  # by `collect`, later: nothing is given back here

    def collect(self, reply: Reply, at: CallRecord | None) -> CallRecord:
        """See `Collected.collect`."""
        record = self.record
        record.usage = reply.usage or (self.expectation().usage() if self._held else None)
        add_counts(self.scope.tallies, unreported_calls=-self._unknown)
        self._settle(reply, reply.usage, at or record)
        if self._unknown:  # its end was emitted without it
            self.scope.engine.listeners.call_updated(record)
        return record


def send_call(call: Call, sender: CallSender) -> Any:
    """Send one call through every layer, from synchronous code; it returns or raises what the client does, or raises a refusal of ours."""
    live = ModelCall.start(call)
    if live is None:
        return sender.send(None)
    try:
        wait = live.admit(sender, blocking=True)
        if wait is not None:
            run_sync(wait)
        result = sender.send(live)
        live.conclude(sender, result)
        return result  # noqa: TRY300 - what comes after is the end of a call that failed
    except BaseException as raised:  # noqa: BLE001 - it is raised again, or what we raise from it
        error = run_sync(live.failed(sender, raised))
        try:
            if error is not raised:
                raise error from raised
            raise
        finally:
            del live, error  # they know each other, and the error's traceback knows this frame: a cycle that would keep all alive


async def send_call_async(call: Call, sender: CallSender) -> Any:
    """Send one call through every layer, from a coroutine; see `send_call`."""
    live = ModelCall.start(call)
    if live is None:
        return await sender.send_async(None)
    try:
        wait = live.admit(sender, blocking=False)
        if wait is not None:
            await run_async(wait)
        result = await sender.send_async(live)
        live.conclude(sender, result)
        return result  # noqa: TRY300 - as above
    except BaseException as raised:  # noqa: BLE001 - it is raised again, or what we raise from it
        error = await run_async(live.failed(sender, raised))
        try:
            if error is not raised:
                raise error from raised
            raise
        finally:
            del live, error  # as above
