"""Follow one model call until it is answered: admitted, attempted, heard."""

from __future__ import annotations

from ravi_otel._enforcement import charges, errors_text
from ravi_otel._enforcement.admission import Estimate
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Denied, Grant, Line, Reservation, new_op_id
from ravi_otel._enforcement.usage_counters import add_counts, add_request
from ravi_otel._flow import Flow, is_done, run_sync
from ravi_otel._runtime.attempts import pay_again
from ravi_otel._runtime.capping import Sizing, sized
from ravi_otel._runtime.charging import dearest_tier
from ravi_otel._runtime.late import attend
from ravi_otel._runtime.patience import around, owner, patience
from ravi_otel._runtime.resumption import checkpoint
from ravi_otel._runtime.settlement import Settlement
from ravi_otel.errors import BudgetError
from ravi_otel.hooks.records import RetryRecord
from ravi_otel.policy.limits import Kind

_TOKENS = Kind.TOKENS.value


class LiveCall(Settlement):
    """Hold what one call was granted, and follow it until somebody ends it."""

    __slots__ = ()

    # -- before it is sent ----------------------------------------------------------------------------------------

    def admit(self, *, blocking: bool, sizing: Sizing | None = None) -> Flow[None]:
        """Hold what the call may take; raise when a limit, the deadline or a cancellation stands against it.

        `sizing` knows how large it can be, which only strict limits ask.
        """
        record, scope = self.record, self.scope
        passing = checkpoint(scope, record)
        if not is_done(passing):
            self.waiting = True
            yield from passing
            self.waiting = False
        refused, self.refused = self.refused, None
        if refused is not None:
            raise refused
        if record.call.generative:
            if scope.wrapping is not None:
                self.claim = scope.wrapping.claim(scope)
            lines = self._lines(sizing)
            plan = scope.plan
            if self._expected.cost is None and plan.priced:
                charges.observed_unpriced(scope, record)
            if lines:
                floor: dict[str, int] = {_TOKENS: self._expected.input_tokens}
                longest_s = patience(scope, blocking=blocking)
                request = Reservation(record.op_id, lines, floor, owner(), longest_s, on_stop=scope.on_stop, meanwhile=attend)
                request.around = (*plan.carved, *around())
                request.wraps_up, request.sure = self.claim is not None, self._expected.sure
                self._asked = True
                answering = scope.engine.ledger.reserve(request)
                if is_done(answering):
                    answer = answering.value
                else:
                    self.waiting = True
                    answer = yield from answering
                    self.waiting = False
                    self._still_wanted(answer)
                self._answered(answer)
            add_request(scope.tallies, turn=record.call.turn)
        record.decision = record.decision or "admitted"
        self.admitted = True

    def _lines(self, sizing: Sizing | None) -> list[Line]:
        scope, call = self.scope, self.record.call
        plan = scope.plan
        if not plan.chain:  # nobody is asked for anything: what is expected is the request alone
            self._expected = Estimate.of(call, None)
            return []
        learned = scope.engine.learned.p95(scope.facts.agent_name, call.model) if call.output_cap is None else None
        card = scope.engine.prices.card(call.provider, call.model, dearest_tier(call)) if plan.priced else None
        self._expected = Estimate.of(call, card, learned)
        if not plan.strict:
            return plan.lines(call, self._expected)
        capped = sized(scope, call, sizing)
        if isinstance(capped, Account):
            self._blame(capped, "unbounded_input")
            scope.engine.count("denied", capped)
            raise owned(errors_text.unbounded(capped, call), capped)
        self.capped = capped
        return plan.lines(call, self._expected, capped.worst)

    def _answered(self, answer: Grant | Denied) -> None:
        record, engine = self.record, self.scope.engine
        self._held = not isinstance(answer, Denied)
        if answer.crossings:
            engine.answered(answer, record)
        if isinstance(answer, Denied):
            self._blame(answer.account, answer.reason)
            engine.count("contended" if answer.reason == "contended" else "denied", answer.account)
            raise owned(errors_text.refused(answer), answer.account)
        record.granted = answer.granted
        if self.capped is not None:
            self.capped.granted(answer, record)
        if record.call.stream or self.capped is not None:
            self.holds = answer.holds
        if answer.observed is not None and record.decision != "observed":
            charges.observed(self.scope, answer.observed, record)

    def _still_wanted(self, answer: Grant | Denied) -> None:
        """Check once more what may have come while the call waited: the end of its run, its time or its slot."""
        try:
            self.scope.checkpoint(self.record)
        except BaseException:
            self.scope.engine.answered(answer, self.record)
            if isinstance(answer, Grant):
                run_sync(self.scope.engine.ledger.release(self.record.op_id))
            raise

    def _blame(self, account: Account, reason: str) -> None:
        self.record.limit_kind, self.record.limit_scope, self.record.limit_reason = account.kind, account.facts.kind, reason

    def attempt(self, retries_taken: int) -> None:
        """Pay for one more attempt, right before its request is built; raises when it may not be sent.

        The first is covered by the call's own reservation, and so is one that follows an attempt that never left. After one that no
        answer came to, which may be billed, strict limits are asked for the whole worst case again.
        """
        if retries_taken <= 0 or not self.record.call.generative:
            return
        self.scope.checkpoint(self.record)
        if self._credit:
            self._credit = self._between = False
            return
        self._settle_attempt()
        lines = self.scope.plan.attempt_lines(self.record.call.model)
        op_id = new_op_id()
        try:
            if self._doubtful and self.capped is not None:
                self._paid_attempt = pay_again(self.scope, lines, self.holds, self.record, op_id)
            else:
                self._paid_attempt = self.scope.charge_lines(lines, self.record, op_id)
        except BaseException:
            self._paid_attempt = None
            run_sync(self.scope.engine.ledger.release(op_id))  # it is not sent
            raise
        self._between = False
        add_counts(self.scope.tallies, requests=1)
        self.record.requests += 1

    def retrying(self, retry: RetryRecord, *, sent: bool) -> None:
        """Note that an attempt failed and another will follow."""
        self._credit = not sent
        self._sent_before = self._sent_before or sent
        self._between = True
        if sent:
            self._doubtful = retry.status is None
        self.record.retries.append(retry)
        self.scope.engine.listeners.call_retried(self.record, retry)

    def follow(self, status: int | None, why: str, *, sent: bool = True) -> None:
        """Pay for one more request, after the answer `status` to the latest one, None for none; raises when it may not be sent."""
        self.retrying(RetryRecord(len(self.record.retries) + 1, status, None, why), sent=sent)
        self.attempt(1)

    # -- while it is answered ----------------------------------------------------------------------------------------------------

    def chunk(self) -> None:
        """Note that a chunk of a stream came: the first one, and each of them where each is timed."""
        record, came = self.record, self.scope.engine.clock.monotonic_ns() - self.record.started_ns
        if record.first_chunk_ns is None:
            record.first_chunk_ns = came
        else:
            self.scope.engine.listeners.chunk_came(record, came - self._last_chunk_ns)
        self._last_chunk_ns = came

    def instead_of(self, error: BaseException) -> BudgetError | None:
        """Give the refusal that the client's error really is, because we caused it; None for an error of its own."""
        return None if self.capped is None else self.capped.instead_of(error, self.record)

    def content(self) -> None:
        """Note that the first of a stream's content came."""
        self.record.first_content_ns = self.scope.engine.clock.monotonic_ns() - self.record.started_ns
