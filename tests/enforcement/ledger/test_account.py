"""One account by itself: its rolling window to the bucket, when it has room again, what is promised of it, and how it begins anew."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel._enforcement.ledger.account import (
    BUCKETS,
    DRAINS,
    RUNS_S,
    Account,
    Copy,
    Drains,
    Nature,
    ShareClaim,
    amount_kept_back,
    state_of,
    width_ns,
)
from ravi_otel._enforcement.ledger.judge import (
    Grant,
    Line,
    RepeatedGrant,
    Reservation,
    asked_once,
    at_once,
    reserve,
    settle,
    settled_together,
)
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import Admission, Kind, Limit, Outcome, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

S = 1_000_000_000
UNSURE_S = 3_600


def account(value=10, kind=Kind.TOKENS, scope="run", **limit):
    return Account(Limit(kind=kind, value=value, **limit), ScopeFacts(scope_id="s", kind=ScopeKind(scope)), origin="the limit")


def rolling(value=10, *, per="60s", **limit):
    return account(value, per=per, **limit)


def charge(each, at_s, amount):
    """Charge so much at this second, and look."""
    each.expire(at_s * S)
    each.used += amount
    each.expire(at_s * S)


def test_each_part_of_a_window_leaves_sixty_parts_later():
    each = rolling()
    charge(each, 100, 1)
    charge(each, 110, 7)
    assert each.packed_window() == "110 0 100:1 110:7"
    each.expire(160 * S)
    assert (each.used, each.buckets) == (8, {100: 1, 110: 7})
    each.expire(161 * S)
    assert (each.used, each.buckets, each.rolled) == (7, {110: 7}, 161)
    each.expire(171 * S)
    assert (each.used, each.buckets) == (0, {})


def test_what_is_given_back_is_taken_from_the_oldest_parts():
    each = rolling(100)
    for at_s in (100, 110, 120):
        charge(each, at_s, 5)
    each.expire(121 * S)
    assert each.buckets == {100: 5, 110: 5, 120: 5}
    charge(each, 122, -2)
    assert each.buckets == {100: 3, 110: 5, 120: 5}
    charge(each, 123, -5)
    assert each.buckets == {110: 3, 120: 5}
    charge(each, 124, 1)
    charge(each, 124, 1)
    assert each.buckets == {110: 3, 120: 5, 124: 2}


def test_what_was_charged_since_a_look_is_of_the_part_of_that_look():
    each = rolling(100)
    charge(each, 100, 2)
    each.used += 3
    each.expire(130 * S)
    assert each.buckets == {100: 5}


@pytest.mark.parametrize(("index", "told"), [(40, 40), (10, 10), (161, 101)])
def test_a_clock_that_was_put_back_takes_all_of_the_window_with_it(index, told):
    each = rolling()
    charge(each, 100, 9)
    each.cross("settle", "admitted", ())
    assert (each.told, each.near) == (100, True)
    if index > 100:
        each.rolled, each.buckets, each.told = index + 100, {index + 90: 9}, told + 100
    each.expire(index * S)
    assert (each.rolled, each.told, each.used) == (index, told, 9)
    assert list(each.buckets) == [index if index < 100 else index - 10]


def test_a_clock_that_was_put_back_far_forgets_no_event_and_makes_none_up():
    each = rolling()
    charge(each, 100, 9)
    each.cross("settle", "admitted", ())
    each.expire(150 * S)
    each.expire(5 * S)
    assert (each.rolled, each.told, each.near) == (5, 1, True)
    silent = rolling()
    charge(silent, 100, 1)
    silent.expire(50 * S)
    assert (silent.told, silent.buckets) == (0, {50: 1})


@pytest.mark.parametrize(("near", "exceeded"), [(True, False), (False, True)])
def test_events_are_armed_again_when_nothing_was_told_for_longer_than_the_window(near, exceeded):
    each = rolling()
    each.flag(near=near, exceeded=exceeded, draining=False)  # elsewhere, before a run went on here
    each.expire(100 * S)
    assert each.told == 100
    each.expire((100 + BUCKETS) * S)
    assert (each.near, each.exceeded, each.told) == (near, exceeded, 100)
    each.expire((101 + BUCKETS) * S)
    assert (each.near, each.exceeded, each.told) == (False, False, 0)


def test_draining_ends_below_the_warning_level_and_not_at_it():
    each = rolling()
    charge(each, 100, 1)
    charge(each, 110, 8)
    each.flag(near=True, exceeded=True, draining=True)
    each.expire(161 * S)
    assert (each.used, each.draining) == (8, True)
    each.expire(171 * S)
    assert (each.used, each.draining, each.near, each.exceeded) == (0, False, True, True)


def test_how_long_until_so_much_has_left():
    each = rolling(per="61s")
    width = width_ns(61 * S)
    assert each.leaves_after_ns(0) is None
    for index, amount in ((100, 5), (110, 3)):
        each.expire(index * width)
        each.used += amount
        each.expire(index * width)
    assert [each.leaves_after_ns(most) for most in (9, 8, 7, 3, 2, 0)] == [0, 0, 51 * width, 51 * width, 61 * width, 61 * width]
    each.used += 4  # of the part of the last look
    assert [each.leaves_after_ns(most) for most in (12, 11, 7, 6)] == [0, 51 * width, 51 * width, 61 * width]
    each.used -= 6
    assert each.leaves_after_ns(6) == 0


def nearly_full(**limit):
    each = rolling(per="61s", **limit)
    each.wall_s = lambda: 1_000.0
    for index, amount in ((100, 1), (110, 7)):
        each.expire(index * width_ns(61 * S))
        each.used += amount
        each.expire(index * width_ns(61 * S))
    return each


def after(parts):
    """Give the time when so many parts have passed, rounded up to a microsecond."""
    return datetime.fromtimestamp(1_000, UTC) + timedelta(microseconds=-(-parts * width_ns(61 * S) // 1_000))


@pytest.mark.parametrize(("needed", "parts"), [(None, 51), (2, 0), (3, 51), (4, 61), (10, 61)])
def test_a_limit_has_room_again_when_enough_has_left_it(needed, parts):
    assert nearly_full().resets_at(needed) == after(parts)


def test_a_limit_that_drains_has_no_room_before_it_is_below_its_warning_level():
    each = nearly_full()
    each.draining = True
    assert each.resets_at(1) == after(51)
    assert each.resets_at(10) == after(61)


def test_who_needs_more_than_the_limit_or_has_none_never_has_room():
    assert nearly_full().resets_at(11) is None
    assert rolling(0).resets_at() is None
    assert account().resets_at() is None


def test_a_store_that_does_not_tell_what_leaves_when_has_room_after_the_whole_window():
    each = rolling()
    each.wall_s = lambda: 1_000.0
    assert each.resets_at() == datetime.fromtimestamp(1_060, UTC)


@pytest.mark.parametrize("text", ["1", "1  2", "1 2 3", "1 2 3:", "1 2 x:1", "1 2 4:1 3:1", "1 2 3:1 3:1", f"{10**20} 1", 5, "½ 1"])
def test_a_window_that_cannot_be_read_changes_nothing(text):
    each = rolling()
    each.unpack_window("7 6 5:4")
    with pytest.raises(ValueError, match=r"^(a part of a rolling window is no number|the parts of a rolling window are in no order)$"):
        each.unpack_window(text)
    assert (each.rolled, each.told, each.buckets) == (7, 6, {5: 4})


def test_a_window_has_so_many_parts_and_no_more():
    each, parts = rolling(), [f"{at}:1" for at in range(1, BUCKETS + 4)]
    each.unpack_window(" ".join(("99", "0", *parts[:-1])))
    assert len(each.buckets) == BUCKETS + 2
    with pytest.raises(ValueError, match=r"^a rolling window has more parts than there are$"):
        each.unpack_window(" ".join(("99", "0", *parts)))
    for nothing in ("", None):
        each.unpack_window(nothing)
        assert (each.rolled, each.told, each.buckets) == (0, 0, {})
    each.unpack_window(f"{10**20 - 1} 1")
    assert each.rolled == 10**20 - 1


def test_a_counter_that_begins_anew_knows_nothing_of_before():
    each = rolling(10)
    charge(each, 100, 9)
    each.cross("settle", "admitted", (), denied=True)
    each.held, each.denied, each.epoch, each.refused_at = 3, 2, "e", 10
    each.draining = True
    each.revalue(99)
    each.begin_anew()
    assert (each.epoch, each.used, each.held, each.denied, each.events) == (None, 0, 0, 0, ())
    assert (each.buckets, each.rolled, each.told, each.refused_at, each.value) == ({}, 0, 0, None, 10)
    assert (each.near, each.exceeded, each.draining) == (False, False, False)


def test_a_state_is_put_back_with_its_flags_and_a_window_of_its_own():
    each, other = rolling(10), rolling(10)
    charge(each, 100, 9)
    each.cross("settle", "admitted", (), denied=True)
    each.draining = True
    other.restore(state_of(each))
    assert state_of(other) == state_of(each)
    assert (other.near, other.exceeded, other.draining) == (True, True, True)
    charge(other, 101, 1)
    assert (each.buckets, other.buckets) == ({100: 9}, {100: 9, 101: 1})


def test_what_is_told_of_a_counter_is_told_for_its_twins_which_drain_by_themselves():
    each, twin = rolling(10), rolling(10)
    each.twins = (twin,)
    twin.draining = True
    charge(each, 100, 9)
    each.cross("settle", "admitted", ())
    assert (twin.near, twin.exceeded, twin.draining, twin.told, twin.events) == (True, False, True, 100, ("limit_nearing",))
    each.cross("settle", "denied", (), denied=True)
    assert (twin.near, twin.exceeded, twin.draining) == (True, True, True)


def test_what_is_left_is_promised_by_weight_and_nothing_of_what_drains_or_is_kept_back():
    each, meters = account(40, on_exceed=Outcome.FINAL), [account(99), account(99)]
    small, large = claims = ShareClaim(meters[0], 1), ShareClaim(meters[1], 2)
    assert [claim.left for claim in claims] == [0, 0]
    for claim in claims:
        each.admit(claim)
    each.used = 6
    each.split()
    assert [claim.left for claim in claims] == [10, 20]
    assert (each.promised(), each.promised(to=[meters[0]]), each.promised(but=[meters[0]])) == (30, 10, 20)
    meters[1].used = 5
    assert (small.left, large.left) == (10, 15)
    each.used = 50
    each.split()
    assert each.promised() == 0
    each.used, each.draining = 0, True
    each.split()
    assert each.promised() == 0
    assert each.forgo(meters[0])
    assert not each.forgo(meters[0])


def test_of_what_drains_nothing_is_promised_to_one_alone_either():
    each, claim = account(40), ShareClaim(account(99), 1)
    each.admit(claim)
    each.split()
    assert claim.left == 40
    each.draining = True
    each.split()
    assert claim.left == 0


def test_a_claim_that_two_give_up_at_once_is_given_up_and_neither_fails():
    class Met(Account):
        """Another thread gives the claim up right after the claims were read."""

        __slots__ = ()

        @property
        def claims(self):
            found = super().claims
            self._claims.clear()
            return found

    meter = account(99)
    each = Met(Limit(kind=Kind.TOKENS, value=10), ScopeFacts(scope_id="s", kind=ScopeKind.RUN), origin="the limit")
    each.admit(ShareClaim(meter, 1))
    assert each.forgo(meter)
    assert not each.forgo(meter)


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [("tokens", 25, 3), ("tokens", 1, 1), ("requests", 1, 0), ("requests", 2, 1), ("turns", 9, 1), ("tool_calls", 9, 0)],
)
def test_what_is_kept_for_a_last_call(kind, value, kept):
    found = amount_kept_back(Limit(kind=kind, value=value, on_exceed=Outcome.FINAL), value)
    assert (found, type(found)) == (kept, int)
    assert amount_kept_back(Limit(kind=kind, value=value), value) == 0


@pytest.mark.parametrize(
    ("scope", "per", "keep_s", "kept_s"),
    [
        ("tenant", None, 9e9, 9_000_000_000),
        ("process", None, 9.6, 10),
        ("run", None, 9e9, RUNS_S),
        ("session", None, 5, 5),
        ("tenant", "60s", 9e9, RUNS_S),
        ("tenant", "9d", 5, 9 * 86_400),
        ("run", "9d", 9e9, 9 * 86_400),
    ],
)
def test_how_long_a_store_keeps_a_counter(scope, per, keep_s, kept_s):
    assert account(scope=scope, per=per).kept_s(keep_s) == kept_s


def test_why_a_counter_that_is_gone_may_begin_anew():
    each, kept_s = account(scope="tenant"), 1_000_000
    known = {"seen_ago_s": 100, "keep_s": kept_s}
    assert each.may_begin_anew(**{**known, "seen_ago_s": kept_s - UNSURE_S}, accepted_ago_s=None) == "expired"
    assert each.may_begin_anew(**{**known, "seen_ago_s": kept_s - UNSURE_S - 1}, accepted_ago_s=None) is None
    assert each.may_begin_anew(**known, accepted_ago_s=100) == "accepted"
    assert each.may_begin_anew(**known, accepted_ago_s=101) is None
    assert account(on_store_failure="open").may_begin_anew(**known, accepted_ago_s=None) == "open"


def test_each_change_of_a_limit_and_of_what_drains_is_seen():
    assert Drains().count == 0
    each, drained = account(), DRAINS.count
    before = each.changes
    each.revalue(5)
    assert (each.changes, DRAINS.count) == (before + 1, drained)
    each.draining = True
    assert (each.changes, DRAINS.count) == (before + 2, drained + 1)
    each.near = True
    assert (each.changes, DRAINS.count) == (before + 3, drained + 2)


@given(
    value=st.integers(0, 12),
    kind=st.sampled_from([Kind.TOKENS, Kind.REQUESTS]),
    outcome=st.sampled_from([Outcome.RAISE, Outcome.FINAL, Outcome.OBSERVE]),
    warn_at=st.sampled_from([0.1, 0.5, 0.8, 1.0]),
    near=st.booleans(),
    exceeded=st.booleans(),
)
def test_nothing_is_crossed_below_the_level_that_an_account_says_and_something_is_at_it(value, kind, outcome, warn_at, near, exceeded):
    each = account(value, kind, on_exceed=outcome, warn_at=warn_at)
    told = []
    for used in range(2 * value + 3):
        each.flag(near=near, exceeded=exceeded, draining=False)
        says, each.used = each.quiet_until, used
        if each.cross("settle", "admitted", ()):
            told.append(used)
    assert says == min(told, default=float("inf"))


@given(
    value=st.integers(0, 12),
    kind=st.sampled_from([Kind.TOKENS, Kind.REQUESTS]),
    outcome=st.sampled_from([Outcome.RAISE, Outcome.FINAL]),
    warn_at=st.sampled_from([0.1, 0.5, 0.8, 1.0]),
    near=st.booleans(),
    exceeded=st.booleans(),
)
def test_what_is_admitted_at_once_is_all_that_is_granted_whole_and_crosses_nothing(value, kind, outcome, warn_at, near, exceeded):
    def asked(want):
        each = account(value, kind, on_exceed=outcome, warn_at=warn_at)
        each.flag(near=near, exceeded=exceeded, draining=False)
        return Reservation("1", [Line(each, want, want)])

    def is_plain(want):
        request, operations = asked(want), {}
        granted = reserve(request, operations)
        return not granted.crossings and isinstance(granted, Grant) and not settle(granted, {}, guessed=True).crossings

    for want in range(2 * value + 3):
        assert (at_once(asked(want), {}) is not None) == is_plain(want)


@pytest.mark.parametrize(
    "each",
    [
        account(on_exceed=Outcome.OBSERVE),
        account(10, Kind.REQUESTS, on_exceed=Outcome.OBSERVE),
        account(admission=Admission.AFTER),
        account(10, Kind.MESSAGES),
        rolling(),
    ],
)
def test_what_only_observes_or_rolls_or_is_no_sum_known_by_then_is_looked_at_each_time(each):
    for want in (0, 1):
        assert at_once(Reservation("1", [Line(each, want, want)]), {}) is None


def test_what_drains_or_is_promised_is_looked_at_each_time():
    drains, promised = account(), account()
    asks = {each: Reservation("1", [Line(each, 1, 1)]) for each in (drains, promised)}
    for request in asks.values():
        assert at_once(request, {}) is not None
    drains.draining = True
    promised.admit(ShareClaim(account(), 1))
    promised.retune(None)
    for request in asks.values():
        assert at_once(request, {}) is None


@pytest.mark.parametrize(
    ("process", "own", "nature", "strict"),
    [
        (Admission.AFTER, None, Nature.AFTER, False),
        (Admission.STRICT, None, Nature.HELD, True),
        (Admission.ESTIMATE, None, Nature.HELD, False),
        (Admission.AFTER, Admission.STRICT, Nature.HELD, True),
        (Admission.STRICT, Admission.AFTER, Nature.AFTER, False),
    ],
)
def test_a_limit_that_says_nothing_of_admission_is_counted_as_its_process_chose(process, own, nature, strict):
    facts = ScopeFacts(scope_id="s", kind=ScopeKind.RUN)
    each = Account(Limit(kind=Kind.TOKENS, value=9, admission=own), facts, origin="the limit", admission=process)
    assert (each.nature, each.strict) == (nature, strict)


def test_an_account_by_itself_knows_of_no_store_no_window_and_no_other_account():
    each = account()
    assert (each.asked_ns, each.copy, each.epoch, each.shared, each.row, each.twins, each.waiters) == (0, None, None, None, None, (), [])
    assert (each.named_store, each.ends_s, each.window, each.counted_for, each.part) == (False, None, None, None, ())
    assert (each.used, each.held, each.denied, each.events, each.refused_at) == (0, 0, 0, (), None)
    assert (each.near, each.exceeded, each.draining) == (False, False, False)
    assert (each.roll_ns, each.buckets, each.rolled, each.told) == (0, {}, 0, 0)
    assert (each.origin, type(each.named_store)) == ("the limit", bool)


def test_a_window_goes_by_the_clock_of_this_machine_where_its_store_has_none():
    before_s = time.time()
    assert before_s + 60 <= rolling().resets_at().timestamp() <= time.time() + 60.001


def test_a_copy_stays_as_it_was_and_shows_a_smaller_limit_that_the_store_has_not_heard_of():
    each = rolling(10)
    charge(each, 100, 4)
    each.held = 2
    one = each.copy = Copy(each, 77)
    assert (one.at_ns, one.account.copy, each.newest) == (77, None, one.account)
    charge(each, 101, 1)
    assert (one.account.used, one.account.buckets, each.newest) == (4, {100: 4}, each)
    each.revalue(20)
    one.agree(each)
    assert one.account.value == 10
    each.revalue(5)
    one.agree(each)
    assert one.account.value == 5
    each.epoch = "e"
    each.revalue(1)
    one.agree(each)
    assert one.account.value == 5


def test_a_limit_that_was_declared_twice_is_asked_once_for_the_most():
    first, second = account(), account()
    one = Line(first, 1, 1)
    assert asked_once([one], second) is one
    line = asked_once([Line(first, 5, 1, free=True), Line(second, 3, 2, carved=True)])
    assert (line.account, line.want, line.minimum, line.free, line.carved) == (first, 5, 2, False, True)
    line = asked_once([Line(first, 3, 2, free=True), Line(second, 5, 1, free=True)], second)
    assert (line.account, line.want, line.minimum, line.free, line.carved) == (second, 5, 2, True, False)


def test_a_call_is_granted_on_what_others_count_in_and_on_its_own_in_the_order_it_asked(tmp_path):
    ledger = SqliteLedger(tmp_path / "ledger.db", shares=Account.is_shareable)
    mine, ours, seen = account(100, scope="agent"), account(40), account(1, kind=Kind.REQUESTS, scope="agent", on_exceed=Outcome.OBSERVE)
    run_sync(ledger.reserve(Reservation("0", [Line(seen, 1, 1)])))
    granted = run_sync(ledger.reserve(Reservation("1", [Line(mine, 50, 10), Line(ours, 50, 10), Line(seen, 1, 1)])))
    assert (granted.op_id, [(line.account, hold) for line, hold in granted.holds]) == ("1", [(mine, 50), (ours, 40), (seen, 0)])
    assert (granted.granted, granted.observed) == (40, seen)
    assert [(one.account, one.event) for one in granted.crossings] == [(seen, "limit_exceeded")]
    settled = run_sync(ledger.settle("1", {Kind.TOKENS: 90}))
    assert settled.overage == [(ours, 50), (mine, 40)]
    assert [(one.account, one.event) for one in settled.crossings] == [
        (ours, "limit_nearing"),
        (ours, "limit_exceeded"),
        (mine, "limit_nearing"),
    ]
    ledger.close()


def test_a_call_is_granted_what_is_left_of_what_others_count_in_though_all_of_its_own_is_there(tmp_path):
    ledger = SqliteLedger(tmp_path / "ledger.db", shares=Account.is_shareable)
    mine, ours, again = account(100, scope="agent"), account(40), account(40)
    granted = run_sync(ledger.reserve(Reservation("1", [Line(mine, 50, 10), Line(ours, 50, 10)])))
    assert [hold for _, hold in granted.holds] == [50, 40]
    run_sync(ledger.settle("1", {Kind.TOKENS: 1}))
    twice = run_sync(ledger.reserve(Reservation("2", [Line(mine, 50, 10), Line(ours, 20, 10), Line(again, 30, 10)])))
    assert sorted((line.want, hold) for line, hold in twice.holds) == [(30, 30), (50, 50)]
    run_sync(ledger.settle("2", {Kind.TOKENS: 1}))
    short = run_sync(ledger.reserve(Reservation("3", [Line(mine, 50, 10), Line(ours, 20, 10), Line(again, 60, 10)])))
    assert sorted((line.want, hold) for line, hold in short.holds) == [(50, 50), (60, 38)]
    ledger.close()


def test_who_asks_again_in_another_process_hears_what_was_granted_there(tmp_path):
    first, second = (SqliteLedger(tmp_path / "ledger.db", shares=Account.is_shareable) for _ in range(2))
    asks = [Line(account(40), 50, 10), Line(account(100, scope="agent"), 50, 10)]
    run_sync(first.reserve(Reservation("1", asks)))
    again = run_sync(second.reserve(Reservation("1", [Line(account(40), 50, 10), Line(account(100, scope="agent"), 50, 10)])))
    assert isinstance(again, RepeatedGrant)
    assert (again.op_id, again.granted, again.lines, again.crossings) == ("1", 40, (), ())
    first.close()
    second.close()


def test_a_grant_says_what_it_was_made_of():
    each, lines = account(), [Line(account(), 1, 1)]
    made = Grant("1", lines=lines, held=[1], crossings=[1], observed=each)
    assert (made.op_id, made.lines, made.held, made.crossings, made.observed) == ("1", lines, [1], [1], each)
    repeated = RepeatedGrant("1", 4, [1])
    assert (repeated.op_id, repeated.granted, repeated.crossings, repeated.lines) == ("1", 4, [1], ())
    together = settled_together()
    assert (together.crossings, together.overage, together.forgotten) == ([], [], False)


def test_a_part_of_a_request_asks_as_the_whole_does():
    def stop(_):
        return print

    asks = [Line(account(), 1, 1), Line(account(), 2, 2)]
    whole = Reservation("1", asks, "me", 3.0, spent=True, on_stop=stop, meanwhile=print, around=("x",), wraps_up=True, sure=True, slot=True)
    part = whole.on(asks[:1])
    more = part.patient(0.5)
    for each, patience_s in ((part, 3.0), (more, 0.5)):
        assert (each.op_id, each.lines, each.owner, each.patience_s, each.spent) == ("1", asks[:1], "me", patience_s, True)
        assert (each.on_stop, each.meanwhile, each.around) == (stop, print, ("x",))
        assert (each.wraps_up, each.sure, each.slot, each.part_of) == (True, True, True, whole)
    assert part.meters == {line.account for line in asks}
