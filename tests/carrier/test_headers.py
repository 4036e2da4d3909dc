"""Ours goes to hosts that are listed and to no other; what comes in is believed or counted, and raises nothing."""

import asyncio
import email.message
import os
import random

import pytest
from opentelemetry import baggage
from opentelemetry import context as otel_context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.sdk.trace import TracerProvider

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, child_environment, continue_run, lend, outbound_headers, task_headers
from ravi_otel.carrier import _inbound
from ravi_otel.carrier._inbound import read
from ravi_otel.carrier._outbound import headers_for, is_listed, without_our_baggage
from ravi_otel.carrier._token import MOST_BYTES, tokens_of, with_ours

URL, ELSEWHERE = "http://b.internal/x", "http://c.internal/x"
OURS = ["ravi.x=1", "RAVI.carry=1", " ravi.run_id = 5;p=1", "%72avi.carry=2", "ravi%2Ecarry=3", "ravi.=", "ravi.carry"]


def sent(existing=None):
    with ravi_otel.run("triage", limits=["tokens=100"], session_id="s"):
        return headers_for(URL, existing)


# -- what leaves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("existing", [None, "", "a=1", "a=1, b=2;p=%20", "ravioli=1", "x=ravi.carry"])
def test_a_host_that_is_not_listed_gets_what_there_was_and_not_a_byte_more(carrying, existing):
    with ravi_otel.run(limits=["tokens=100"]):
        assert headers_for(ELSEWHERE, existing) is existing


@pytest.mark.parametrize("ours", OURS)
def test_a_host_that_is_not_listed_gets_nothing_of_ours_however_it_is_written(carrying, ours):
    assert headers_for(ELSEWHERE, f"a=1,{ours},b=2") == "a=1,b=2"
    assert headers_for(ELSEWHERE, ours) is None


@pytest.mark.parametrize("ours", OURS)
def test_a_property_of_ours_in_anothers_entry_goes_nowhere(carrying, ours):
    name = ours.partition(";")[0]
    assert headers_for(ELSEWHERE, f"a=1;p=2;{name};q,b=2") == "a=1;p=2;q,b=2"
    assert headers_for(ELSEWHERE, "a=1;p=ravi.carry;ravioli, b=2").startswith("a=1;p=ravi.carry;ravioli")


@pytest.mark.parametrize("existing", [None, "a=1", "a=1,ravi.carry=old", "ravi.carry=old,ravi.x=1"])
def test_a_listed_host_gets_the_current_scope_once_behind_what_others_sent(carrying, existing):
    header = sent(existing)
    assert header.startswith("a=1,ravi.carry=2.k1.") if "a=1" in str(existing) else header.startswith("ravi.carry=2.k1.")
    assert header.count("ravi.") == 1


def test_through_a_proxy_that_is_not_listed_nothing_of_ours_goes(carrying):
    assert not is_listed(URL, "http://proxy.local:3128")
    assert headers_for(URL, "ravi.carry=1", "http://proxy.local:3128") is None
    assert is_listed(URL, "http://b.internal:3128")


def test_without_any_variable_nothing_leaves_and_nothing_is_believed(heard):
    with ravi_otel.run(limits=["tokens=100"]):
        assert headers_for(URL, "a=1,ravi.carry=1") == "a=1"
        assert "baggage" not in outbound_headers(URL)
    with continue_run({"baggage": "ravi.carry=2.k.x.y"}) as run:
        assert run.rejected == "no_keys"
    assert heard.reasons == ["no_keys"]


@pytest.mark.parametrize("others", ["a=" + "x" * (MOST_BYTES - 10), ",".join(f"k{at}=1" for at in range(180))], ids=["bytes", "entries"])
def test_where_the_header_would_be_too_long_ours_goes_before_anything_of_others(carrying, others):
    assert sent(others) == others
    assert carrying.reasons == ["too_long"]


@pytest.mark.parametrize("length", range(MOST_BYTES - 30, MOST_BYTES + 30, 7))
def test_with_ours_no_header_is_longer_than_readers_take(length):
    token = "t" * 100
    whole = with_ours("a=" + "x" * (length - 120), token)
    assert len(whole) <= MOST_BYTES
    assert tokens_of(whole) in ([], [token])


def test_limits_without_number_are_left_out_whole_and_counted(carrying):
    with ravi_otel.run(limits=[f"charge.{'k' * 80}{at}=5" for at in range(60)]):
        assert headers_for(URL, "a=1") == "a=1"
    assert carrying.reasons == ["too_long"]


@pytest.mark.parametrize("url", ["", "x", "http://[", "\x00", "http://b.internal\\@c/", "//b.internal/"])
def test_a_url_that_cannot_be_read_is_not_listed(carrying, url):
    assert headers_for(url, "a=1,ravi.x=2") == "a=1"


def test_headers_for_a_request_of_ones_own_carry_the_trace_the_run_and_others_baggage(carrying):
    tracer = TracerProvider().get_tracer("test")
    token = otel_context.attach(baggage.set_baggage("team", "blue"))
    try:
        with tracer.start_as_current_span("work") as span, ravi_otel.run("triage"):
            headers, elsewhere = outbound_headers(URL), outbound_headers(ELSEWHERE)
    finally:
        otel_context.detach(token)
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert trace_id in headers["traceparent"]
    assert headers["baggage"].startswith("team=blue,ravi.carry=")
    assert elsewhere["baggage"] == "team=blue"
    assert read(headers).token.trace_id == trace_id


def test_a_task_and_a_child_process_carry_the_run(carrying):
    with ravi_otel.run("triage", limits=["tokens=100"]) as outer:
        task, child = task_headers(), child_environment()
    for carried in (task, child, {**os.environ, **child}):
        with continue_run(carried) as run:
            assert (run.id, run.rejected, run.limits[0].remaining) == (outer.id, None, 100)


def test_a_task_that_waited_too_long_is_not_believed(carrying, clock):
    with ravi_otel.run():
        headers = task_headers(expires_s=60)
    clock.advance(60)
    assert read(headers).rejected == "expired"


@pytest.mark.parametrize("given", [0, -1, True, "60", float("nan"), float("inf")])
@pytest.mark.parametrize("function", [task_headers, child_environment, lambda expires_s: lend(tokens=1, expires_s=expires_s)])
def test_a_time_that_is_none_is_refused(carrying, function, given):
    with pytest.raises(ConfigurationError, match=r"expires_s\)="):
        function(expires_s=given)


# -- OpenTelemetry's own baggage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["on", ""])
def test_scopes_are_in_the_ambient_baggage_only_where_that_was_asked_for(carrying, monkeypatch, asked):
    monkeypatch.setenv("RAVI_CARRY_BAGGAGE", asked)
    ravi_otel.instrument()
    with ravi_otel.run("triage", limits=["tokens=100"]) as outer:
        entries = dict(baggage.get_all())
        with ravi_otel.agent("a"):
            inner = dict(baggage.get_all())
        assert not any(name.startswith("ravi.") for name in baggage.get_all(without_our_baggage(otel_context.get_current())))
    assert set(entries) == set(inner) == ({"ravi.carry"} if asked else set())
    assert dict(baggage.get_all()) == {}
    if asked:
        assert entries != inner
        assert read({"baggage": f"ravi.carry={inner['ravi.carry']}"}).token.run_id == outer.id
    ravi_otel.uninstrument()
    with ravi_otel.run():
        assert dict(baggage.get_all()) == {}


# -- what comes in --------------------------------------------------------------------------------------------------------

SHAPES = {
    "mapping": lambda header: {"Baggage": header},
    "pairs": lambda header: [("x", "y"), ("baggage", header)],
    "bytes": lambda header: [(b"BAGGAGE", header.encode())],
    "lists": lambda header: {"baggage": [header]},
    "generator": lambda header: (pair for pair in [("baggage", header)]),
    "environment": lambda header: {"BAGGAGE": header, "PATH": "/bin"},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_headers_are_read_in_every_shape_they_come_in(carrying, shape):
    found = read(shape(sent("a=1")))
    assert (found.token.session_id, found.rejected) == ("s", None)
    assert carrying.reasons == []


def test_headers_of_the_standard_librarys_server_are_read(carrying):
    message = email.message.Message()
    message["Baggage"] = "a=1"
    message["BAGGAGE"] = sent()
    assert read(message).rejected is None


@pytest.mark.parametrize("colour", ["with", "async with"])
def test_what_a_servers_instrumentation_has_put_into_the_context_goes_no_further(carrying, colour):
    propagator = W3CBaggagePropagator()
    headers = {"baggage": sent("a=1")}
    seen = []

    def look():
        out = {}
        propagator.inject(out)
        seen.append(out.get("baggage"))

    async def go_on():
        async with continue_run(headers):
            look()

    token = otel_context.attach(propagator.extract(headers))
    try:
        if colour == "with":
            with continue_run(headers):
                look()
        else:
            asyncio.run(go_on())
        look()
    finally:
        otel_context.detach(token)
    assert seen[0] == "a=1"
    assert "ravi.carry" in seen[1]


def test_entries_over_several_lines_are_one_header(carrying):
    assert read([("baggage", "a=1"), ("baggage", sent()), ("baggage", "b=2")]).token.run_name == "triage"


def flipped(header):
    place = len(header) - 20
    return header[:place] + ("A" if header[place] != "A" else "B") + header[place + 1 :]


BAD = {
    "missing": lambda header: {"baggage": "a=1"},
    "duplicate": lambda header: {"baggage": f"{header},{header}"},
    "oversized": lambda header: {"baggage": f"{header},a={'x' * MOST_BYTES}"},
    "malformed": lambda header: {"baggage": "ravi.carry=%00ÿ"},
    "forged": lambda header: {"baggage": flipped(header)},
    "unsigned": lambda header: {"baggage": "ravi.carry=2..e30."},
}


@pytest.mark.parametrize("reason", BAD)
def test_what_is_not_believed_is_counted_by_its_reason_and_leaves_what_holds_here(carrying, reason):
    with continue_run(BAD[reason](sent()), limits=["tokens=7"], otherwise=["turns=1"]) as run:
        assert run.rejected == reason
        assert [(each.limit.kind, each.limit.value) for each in run.limits] == [("tokens", 7), ("turns", 1)]
        assert run.scope.facts.session_id is None
    assert carrying.reasons == [reason]


@pytest.mark.parametrize("reason", BAD)
def test_what_is_not_believed_may_use_nothing_where_no_limit_holds_here(carrying, reason):
    ran = []

    @ravi_otel.tool
    def pay():
        ran.append(1)

    with (
        continue_run(BAD[reason](sent())) as run,
        pytest.raises(BudgetExhaustedError, match=rf"default holds as .+ \({reason}\), or pass otherwise=") as caught,
    ):
        pay()
    assert ("no header says whose run it is" in str(caught.value)) is (reason == "missing")
    assert {(str(each.limit.kind), each.limit.value) for each in run.limits} == {("requests", 0), ("tool_calls", 0)}
    with continue_run(BAD[reason](sent()), limits=["agents=3"]) as run, pytest.raises(BudgetExhaustedError):
        pay()  # a limit that bounds no call is none
    assert ran == []


@pytest.mark.parametrize(("limits", "otherwise"), [((), []), ((), ["tool_calls=1"]), (["cost=1usd"], None), (["time=90s"], None)], ids=str)
def test_what_is_not_believed_is_held_to_what_somebody_said_instead(carrying, limits, otherwise):
    @ravi_otel.tool
    def pay():
        return "paid"

    with continue_run({}, limits=limits, otherwise=otherwise) as run:
        assert pay() == "paid"
        assert len(run.scope.readings()) == len(limits) + len(otherwise or [])
    with ravi_otel.run(limits=["turns=5"]), continue_run({}) as run:
        assert pay() == "paid"
        assert run.scope.readings() == []


def test_a_decorated_function_is_held_to_it_each_time_and_one_that_is_believed_is_not(carrying):
    @ravi_otel.tool
    def pay():
        return "paid"

    @continue_run({})
    def work():
        return pay()

    for _ in range(2):
        with pytest.raises(BudgetExhaustedError):
            work()
    with continue_run({"baggage": sent()}) as run:
        assert (run.rejected, pay()) == (None, "paid")


class Hostile(dict):
    def items(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "headers",
    [
        None,
        5,
        "baggage",
        b"x",
        [1],
        [()],
        [("baggage",)],
        [(b"baggage", b"ravi.carry=\xff\xfe")],
        {1: 2},
        {"baggage": None},
        Hostile(),
        object(),
    ],
    ids=range(12),
)
def test_whatever_stands_in_the_headers_place_raises_nothing(carrying, headers):
    with continue_run(headers) as run:
        assert run.rejected in {"missing", "malformed"}


def test_a_peer_that_is_trusted_is_believed_without_a_signature_and_no_other(carrying, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_KEYS", "")
    header = sent()
    monkeypatch.setenv("RAVI_CARRY_TRUST", "10.0.0.0/8")
    assert read({"baggage": header}, peer="10.1.2.3").token.run_name == "triage"
    assert read({"baggage": header}, peer="11.0.0.1").rejected == "unsigned"
    assert read({"baggage": header}).rejected == "unsigned"


def test_a_trusted_peer_is_not_believed_what_bears_a_wrong_signature(carrying, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_TRUST", "10.0.0.0/8")
    assert read({"baggage": flipped(sent())}, peer="10.1.2.3").rejected == "forged"


def test_what_is_for_another_service_is_not_believed_by_one_that_knows_its_name(carrying, monkeypatch):
    header = sent()
    monkeypatch.setenv("RAVI_CARRY_AS", "c.internal")
    assert read({"baggage": header}).rejected == "audience"
    monkeypatch.setenv("RAVI_CARRY_AS", "*.local,b.internal:80")
    assert read({"baggage": header}).rejected is None


def test_what_came_too_late_is_not_believed(carrying, clock):
    header = sent()
    clock.advance(300)
    assert read({"baggage": header}).rejected == "expired"


def test_one_key_follows_another_without_a_request_being_lost(carrying, monkeypatch):
    header = sent()
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k2:fedcba9876543210,k1:0123456789abcdef")
    assert read({"baggage": header}).rejected is None
    newer = sent()
    assert "ravi.carry=2.k2." in newer
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k2:fedcba9876543210")
    assert read({"baggage": newer}).rejected is None
    assert read({"baggage": header}).rejected == "forged"


def test_more_loans_than_can_be_remembered_are_not_believed(carrying, monkeypatch, clock):
    monkeypatch.setattr(_inbound, "_MOST_SEEN", 2)

    def loan():
        with ravi_otel.run(), lend(tokens=5, expires_s=60) as lent:
            header = headers_for(URL, None)
        assert lent.status == "sent"
        return header

    assert [read({"baggage": loan()}).rejected for _ in range(3)] == [None, None, "too_many"]
    clock.advance(60)
    ravi_otel.carrier._lending.sweep()
    assert read({"baggage": loan()}).rejected is None
    clock.advance(60)
    ravi_otel.carrier._lending.sweep()


def test_random_headers_never_raise_and_never_loosen(carrying):
    """`RAVI_LONG=1000000` takes so many."""
    draw, good = random.Random(9), sent("a=1").encode()
    original = read([(b"baggage", good)]).token
    for _ in range(int(os.environ.get("RAVI_LONG") or 1_500)):
        header = bytearray(good)
        for _ in range(draw.randint(1, 6)):
            act, place = draw.randrange(4), draw.randrange(len(header))
            if act == 0:
                header[place] ^= 1 << draw.randrange(8)
            elif act == 1:
                header[place:place] = draw.randbytes(draw.randint(1, 9))
            elif act == 2:
                del header[place : place + draw.randint(1, 40)]
            else:
                header += header[place : place + 200]
            if not header:
                break
        found = read([(b"baggage", bytes(header))])
        assert (found.token is None) == (found.rejected is not None)
        assert found.token in (None, original)
