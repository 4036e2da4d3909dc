"""How people are asked by a function of the program, and what they are shown."""

from __future__ import annotations

import json
from dataclasses import replace

import anyio
import pytest
from approval_desk import requested
from hypothesis import given, settings
from hypothesis import strategies as st

import ravi_otel
from ravi_otel import CancellationError, ConfigurationError, DeadlineExceededError
from ravi_otel.supervisor import ApprovalAnswer, Approver, CallbackApprover
from ravi_otel.supervisor.approval._request import describe_arguments, edit_arguments, freeze, one_line, read_arguments

# -- what is shown ----------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def whole(arguments):
    return [line for line in describe_arguments(arguments) if not line.startswith("reads ")]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=3))
def test_what_is_shown_is_ascii_alone_and_says_exactly_what_would_run(arguments):
    lines = whole(arguments)
    assert all(" " <= char <= "~" for line in lines for char in line)
    assert freeze(json.loads("\n".join(lines))) == freeze(arguments)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("paypal", "p\u0430ypal"),
        ("a b", "a\u00a0b"),
        ("ab", "a\u200bb"),
        ("abc", "a\u202ecb\u202c"),
        ("\u00e9", "e\u0301"),
        ("a", "a\x1b[2K"),
        ("a", "a\x7f"),
        ("a\\u0430", "a\u0430"),
        (1, 1.0),
        (1, True),
        (1, "1"),
        (0.0, -0.0),
        (None, "null"),
    ],
)
def test_no_two_different_arguments_look_alike(first, second):
    assert whole({"to": first}) != whole({"to": second})
    assert one_line({"to": first}, 80) != one_line({"to": second}, 80)


def test_how_other_letters_read_is_told_beside_and_moves_nothing():
    lines = describe_arguments({"name": "M\u00fcller\x1b[2J\u202e\nreads x", "plain": "ok"})
    assert lines[-1] == "reads name: Müller [2J reads x"
    assert len([line for line in lines if line.startswith("reads ")]) == 1


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', "[1]", "{", "[" * 9_000, '{"a": "\\ud800"}'])
def test_what_is_no_plain_object_is_refused(text):
    with pytest.raises(ravi_otel.RaviError):
        read_arguments(text)


# -- what is edited ---------------------------------------------------------------------------------------------------

ASKED = {"user_id": 42, "amount_usd": 1200.0, "reason": "late", "tags": ["a"]}


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ("amount_usd=500", "amount_usd", 500),
        ("amount_usd=500.5", "amount_usd", 500.5),
        ("amount_usd=null", "amount_usd", None),
        ("reason=500", "reason", "500"),
        ("reason=it is = late", "reason", "it is = late"),
        ('reason="a\\nb"', "reason", "a\nb"),
        ('tags=["b", "c"]', "tags", ["b", "c"]),
        ("message=hello there", "message", "hello there"),
    ],
)
def test_a_change_is_json_and_a_text_stays_text(change, name, value):
    fresh = edit_arguments(ASKED, [change])
    assert fresh == {**ASKED, name: value}
    assert type(fresh[name]) is type(value)


def test_a_name_without_a_value_is_left_out():
    assert edit_arguments(ASKED, ["tags=", "reason="]) == {"user_id": 42, "amount_usd": 1200.0}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("amount_us=5", "did you mean 'amount_usd'"),
        ("other=", "it has"),
        ("500", "write NAME=VALUE"),
        ("=5", "write NAME=VALUE"),
        ("amount_usd=abc", "'amount_usd' was a number, and 'abc' is text; give a number"),
        ('amount_usd="500"', "was a number"),
        ("amount_usd=true", "was a number, and True is true or false"),
        ("tags=b", "was a list"),
        ('tags={"b": 1}', "was a list"),
    ],
)
def test_a_change_that_means_nothing_is_refused(change, why):
    with pytest.raises(ConfigurationError, match=why):
        edit_arguments(ASKED, [change])


@pytest.mark.parametrize("value", ["NaN", "Infinity", '{"a": 1, "a": 2}'])
def test_a_value_that_json_does_not_have_is_refused(value):
    with pytest.raises(ravi_otel.RaviError):
        edit_arguments(ASKED, [f"amount_usd={value}"])


# -- a function of the program ----------------------------------------------------------------------------------------


def open_ended(arguments=None):
    return replace(requested(arguments), expires_at=None)


def test_a_callback_is_an_approver():
    assert isinstance(CallbackApprover(lambda _: True), Approver)


@pytest.mark.parametrize("said", [True, False])
def test_a_plain_function_answers_at_once(said):
    assert CallbackApprover(lambda _: said).ask(open_ended()) == ApprovalAnswer(approved=said)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_coroutine_answers_when_it_is_done(backend):
    async def fn(request):
        await anyio.lowlevel.checkpoint()
        return ApprovalAnswer(approved=True, who="anna", comment=request.tool)

    async def ask():
        return await CallbackApprover(fn).ask(open_ended())

    assert anyio.run(ask, backend=backend) == ApprovalAnswer(approved=True, who="anna", comment="issue_refund")


@pytest.mark.parametrize("said", [None, 1, "yes", [True], ApprovalAnswer(approved="yes")])
def test_what_merely_looks_true_is_no_approval(said):
    with pytest.raises(ConfigurationError, match="neither True, False nor an ApprovalAnswer"):
        CallbackApprover(lambda _: said).ask(open_ended())


def test_a_callback_that_changes_its_copy_changes_nothing():
    request = open_ended({"user_id": 42})
    assert CallbackApprover(lambda asked: asked.arguments.clear() is None).ask(request).approved
    assert request.arguments == {"user_id": 42}


def test_what_a_callback_raises_reaches_the_caller():
    def fn(request):
        raise LookupError("nobody is there")

    with pytest.raises(LookupError, match="nobody is there"):
        CallbackApprover(fn).ask(open_ended())


@pytest.mark.anyio
async def test_what_an_asynchronous_callback_raises_reaches_the_caller_as_it_is():
    async def fn(request):
        raise LookupError("nobody is there")

    with pytest.raises(LookupError, match="nobody is there"):
        await CallbackApprover(fn).ask(open_ended())


def test_a_coroutine_cannot_answer_synchronous_code():
    async def fn(request):
        return True

    with pytest.raises(ConfigurationError, match="called by synchronous code"):
        CallbackApprover(fn).ask(open_ended())


def test_a_request_that_has_expired_asks_nobody():
    asked = []
    assert CallbackApprover(asked.append).ask(replace(open_ended(), expires_at=1.0)).comment == "expired"
    assert asked == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_callback_that_takes_too_long_is_cancelled_and_the_request_expired(backend):
    ended = []

    async def fn(request):
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(request.id)

    async def ask():
        soon = replace(open_ended(), expires_at=ravi_otel.current_scope().engine.clock.time() + 0.05)
        return await CallbackApprover(fn).ask(soon)

    assert anyio.run(ask, backend=backend).comment == "expired"
    assert len(ended) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_what_ends_the_run_ends_a_callback(how):
    async def fn(request):
        if how == "cancelled":
            token.cancel("enough")
        await anyio.sleep_forever()

    token = ravi_otel.CancellationToken()
    async with ravi_otel.run("r", limits=["time=0.1s"] if how == "late" else []) as run:
        if how == "cancelled":
            run.scope.cancellation = token
        with pytest.raises(CancellationError if how == "cancelled" else DeadlineExceededError):
            await CallbackApprover(fn).ask(open_ended())


@pytest.mark.anyio
async def test_the_programs_own_cancellation_of_a_callback_passes_unchanged():
    async def fn(request):
        await anyio.sleep_forever()

    with anyio.move_on_after(0.05) as moved:
        await CallbackApprover(fn).ask(open_ended())
    assert moved.cancelled_caught


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ConfigurationError, match="cannot be called"):
        CallbackApprover(True)
