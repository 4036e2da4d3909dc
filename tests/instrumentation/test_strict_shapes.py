"""Strict limits hold against requests of odd shapes: what a lenient server may read in them, and what is added after us."""

from __future__ import annotations

import openai
import pytest

from ravi_otel import BudgetExhaustedError, run, token_limit
from ravi_otel.testing import ScriptedLLM, Text

HI = [{"role": "user", "content": "hi"}]
CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@pytest.fixture(scope="module")
def server():
    with ScriptedLLM(Text("ok", usage=(10, 3_000))) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _instrumented(instrumented):
    return instrumented


def chat(client, **more):
    return client.chat.completions.create(model="gpt-4o", messages=HI, **more)


def strict(n=5_000, **options):
    return run("r", limits=[token_limit(n, admission="strict", **options)])


def sent(server):
    return {name: value for name, value in server.requests[-1].body.items() if name in CAPS}


def test_every_cap_that_is_stated_is_lowered_and_none_is_raised(client, server):
    with strict():
        chat(client, max_completion_tokens=100, max_tokens=100_000)
    assert sent(server)["max_completion_tokens"] == 100
    assert 100 < sent(server)["max_tokens"] < 5_000


@pytest.mark.parametrize("cap", ["50000", "5e4", 50_000.5, "many"])
def test_a_cap_that_only_a_lenient_server_reads_is_lowered(client, server, cap):
    with strict():
        chat(client, extra_body={"max_completion_tokens": cap})
    assert 0 < sent(server)["max_completion_tokens"] < 5_000


@pytest.mark.parametrize("cap", [0, -1, -1_000_000, "-1", 0.0])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_cap_that_some_servers_take_for_none_is_never_raised(client, server, name, cap):
    before = len(server.requests)
    with strict(), pytest.raises(BudgetExhaustedError, match=f"output of a request with {name}.* cannot be capped") as refused:
        chat(client, extra_body={name: cap})
    assert refused.value.reason == "unbounded_input"
    with strict(), pytest.raises(BudgetExhaustedError):
        client.responses.create(model="gpt-4o", input="hi", extra_body={"max_output_tokens": cap})
    assert len(server.requests) == before


@pytest.mark.parametrize("cap", [0, -1, "-1", 0.0, False])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_cap_that_some_servers_take_for_none_goes_out_as_it_is_or_not_at_all(client, server, name, cap):
    with strict(on_unbounded="admit"):
        chat(client, extra_body={name: cap})
        assert sent(server) == {name: cap}
        client.responses.create(model="gpt-4o", input="hi", extra_body={"max_output_tokens": cap})
        assert sent(server) == {"max_output_tokens": cap}
    before = len(server.requests)
    with strict(10**6, on_unbounded="window"), pytest.raises(BudgetExhaustedError, match="cannot be capped"):
        chat(client, extra_body={name: cap})
    with strict(10**6, on_unbounded="window"), pytest.raises(BudgetExhaustedError, match="cannot be capped"):
        client.responses.create(model="gpt-4o", input="hi", extra_body={"max_output_tokens": cap})
    assert len(server.requests) == before


@pytest.mark.parametrize("more", [{"prediction": {"type": "content", "content": "x"}}, {"n": "many"}], ids=repr)
def test_the_window_of_a_model_stands_for_an_input_and_for_no_output_that_has_no_bound(client, server, more):
    before = len(server.requests)
    with strict(10**6, on_unbounded="window"), pytest.raises(BudgetExhaustedError, match="cannot be capped"):
        chat(client, extra_body=more)
    assert len(server.requests) == before


def test_a_small_cap_in_text_is_left_as_it_is(client, server):
    with strict(10**6):
        client.responses.create(model="gpt-4o", input="hi", extra_body={"max_output_tokens": "100"})
        assert sent(server) == {"max_output_tokens": "100"}


@pytest.mark.parametrize("choices", ["3", 3.0, "2.5", 3])
@pytest.mark.parametrize("name", ["n", "best_of"])
def test_choices_that_only_a_lenient_server_reads_are_counted(client, server, name, choices):
    with strict():
        chat(client, extra_body={name: choices})
        assert 1_000 < 3 * sent(server)["max_tokens"] < 5_000


def test_a_legacy_completion_which_nothing_bounds_is_refused_by_a_strict_limit(client, server):
    before = len(server.requests)
    with strict(10**6), pytest.raises(BudgetExhaustedError, match="the output of completions cannot be capped"):
        client.completions.create(model="m", prompt="hi", max_tokens=10)
    assert len(server.requests) == before


@pytest.mark.parametrize("choices", ["three", [3], {"n": 3}, -2])
def test_choices_that_cannot_be_read_are_refused_by_name(client, server, choices):
    before = len(server.requests)
    with strict(), pytest.raises(BudgetExhaustedError, match="output of a request with an n that is no number cannot be capped") as refused:
        chat(client, extra_body={"n": choices})
    assert refused.value.reason == "unbounded_input"
    assert len(server.requests) == before


@pytest.mark.parametrize("more", [{"max_tokens": 50_000}, {"n": 6}, {"user": "x" * 1_000}, {"max_tokens": None}])
def test_what_a_derived_client_adds_after_us_is_refused_before_it_is_sent(server, more):
    class Greedy(openai.OpenAI):
        def _prepare_options(self, options):
            options.json_data = {**options.json_data, **more}
            return options

    before = len(server.requests)
    with Greedy(base_url=server.base_url, api_key="k", max_retries=0) as client, strict() as scope:
        with pytest.raises(BudgetExhaustedError, match=r"a request that Greedy\._prepare_options enlarges") as refused:
            chat(client, max_tokens=100)
        assert refused.value.reason == "unbounded_input"
        assert (scope.limits[0].used, scope.limits[0].held) == (0, 0)
    assert len(server.requests) == before


def test_a_derived_client_that_asks_for_no_more_is_let_pass(server):
    class Modest(openai.OpenAI):
        def _prepare_options(self, options):
            options.json_data = {**options.json_data, "user": "me"}
            return options

    before = len(server.requests)
    with Modest(base_url=server.base_url, api_key="k", max_retries=0) as client, strict(20_000):
        chat(client, max_tokens=100)
        chat(client)
    assert len(server.requests) == before + 2


def test_without_a_cap_4096_is_asked_for_however_often_long_answers_came(client, server):
    with strict(10**6):
        for _ in range(12):
            chat(client)
            assert sent(server) == {"max_tokens": 4_096}
