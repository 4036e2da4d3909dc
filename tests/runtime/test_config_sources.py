"""Which limits count, and who said so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel import cost_limit, token_limit
from ravi_otel._launch.limits import check_for_run
from ravi_otel._runtime import scopes
from ravi_otel._runtime.config import effective, read_tags
from ravi_otel.errors import ConfigurationError, LimitSyntaxError
from ravi_otel.policy import Admission, Kind, format_limit, parse_limit
from ravi_otel.policy import _checks as checks

ORDER = ("code", "--limit", "RAVI_LIMIT_TOKENS", "policy.toml limits[0]")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wrote(here, text, name="policy.toml"):
    path = here / name
    path.write_text(text, encoding="utf-8")
    return path.relative_to(here)


def given_to(here, sources, spec="tokens=1"):
    """Read one limit from each of these sources."""
    file = wrote(here, f'limits = ["{spec}"]')
    return effective(
        code=[spec] if "code" in sources else [],
        flags=[spec] if "--limit" in sources else [],
        environ={"RAVI_LIMIT_TOKENS": "1"} if "RAVI_LIMIT_TOKENS" in sources else {},
        file=file if "policy.toml limits[0]" in sources else None,
    )


@pytest.mark.parametrize("weakest", range(1, 5))
@pytest.mark.parametrize("strongest", range(4))
def test_code_goes_before_flag_before_environment_before_file(here, strongest, weakest):
    sources = ORDER[strongest:weakest]
    policy = given_to(here, sources)
    assert [(each.source, *(other.source for other in each.instead_of)) for each in policy.limits] == ([sources] if sources else [])


def test_limits_of_different_things_stand_side_by_side_strongest_first(here):
    file = wrote(here, 'limits = ["time=9", "tokens=4", "agent.x.tokens=5"]')
    policy = effective(code=[token_limit(1)], flags=["tokens@x=2", "run.tokens=2"], environ={"RAVI_LIMIT_COST": "3usd"}, file=file)
    assert [each.spec for each in policy.limits] == ["tokens=1", "tokens@x=2", "run.tokens=2", "cost=3usd", "time=9", "agent.x.tokens=5"]
    assert [each.spec for each in policy.limits[0].instead_of] == ["tokens=4"]
    assert policy.values == tuple(each.limit for each in policy.limits)


@pytest.mark.parametrize(
    ("spec", "other"),
    [
        ("tool.a=1", "tool.b=1"),
        ("tool.a=1", "tool_calls=1"),
        ("agent.a.cost=1", "agent.b.cost=1"),
        ("agent.cost=1", "cost=1"),
        ("tokens@a=1", "tokens=1"),
    ],
)
def test_what_differs_in_kind_tool_scope_or_agent_is_not_replaced(spec, other):
    assert len(effective(code=[spec], flags=[other], environ={}).limits) == 2


def test_a_window_is_another_limit():
    assert len(effective(code=["tokens=5"], flags=["tokens=6:per=day"], environ={}).limits) == 2


def test_another_consequence_is_the_same_limit():
    (limit,) = effective(code=["tokens=5:on=stop:warn=0.5"], flags=["token=6"], environ={}).limits
    assert limit.limit.value == 5


def test_limits_of_code_may_be_values_or_words():
    policy = effective(code=(limit for limit in [cost_limit(0.5), "tokens=5"]), environ={})
    assert [each.spec for each in policy.limits] == ["cost=0.5usd", "tokens=5"]


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("name", [str.upper, lambda kind: kind.removesuffix("s").upper(), str.lower])
def test_every_kind_has_a_variable(kind, name):
    (limit,) = effective(environ={f"RAVI_LIMIT_{name(kind)}": "5"}).limits
    assert limit.limit == parse_limit(f"{kind}=5")


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("TOKENS", "500k", "tokens=500k"),
        ("COST", " 2.50usd ", "cost=2.50usd"),
        ("TOOL_CALLS", "8", "tool_calls=8"),
        ("TIME", "90s", "time=90s"),
        ("COST", "2usd:on=stop", "cost=2usd:on=stop"),
    ],
)
def test_a_variable_says_a_limit(name, value, meant):
    (limit,) = effective(environ={f"RAVI_LIMIT_{name}": value, "RAVI_OTHER": "x", "PATH": "/"}).limits
    assert (limit.limit, limit.source) == (parse_limit(meant), f"RAVI_LIMIT_{name}")


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        ("code", "tokens=1"),
        ("--limit", "--limit tokens=1"),
        ("RAVI_LIMIT_TOKENS", "RAVI_LIMIT_TOKENS=1"),
        ("policy.toml limits[0]", "tokens=1 in policy.toml limits[0]"),
    ],
)
def test_a_refusal_can_name_what_its_reader_has_to_change(here, source, origin):
    policy = given_to(here, (source,))
    assert policy.limits[0].origin == origin
    assert policy.origins == {0: origin}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"flags": ["tokens=5", "token=6"]}, ["--limit 'token=6' is there twice", "--limit 'tokens=5'"]),
        ({"code": ["tokens=5", token_limit(6)]}, ["code 'tokens=6' is there twice", "code 'tokens=5'"]),
        (
            {"environ": {"RAVI_LIMIT_TOKENS": "5", "RAVI_LIMIT_TOKEN": "6"}},
            ["RAVI_LIMIT_TOKENS='5' is there twice", "RAVI_LIMIT_TOKEN='6'"],
        ),
    ],
)
def test_two_for_the_same_thing_in_one_source_are_both_named(given, words):
    with pytest.raises(ConfigurationError) as caught:
        effective(**({"environ": {}} | given))
    assert [word for word in words if word not in str(caught.value)] == []


def test_two_for_the_same_thing_in_one_file_are_named_with_their_places(here):
    file = wrote(here, 'limits = [\n"tokens=5",\n"token=6",\n]')
    with pytest.raises(
        ConfigurationError, match=r"^'token=6' at policy.toml limits\[1\] is there twice: 'tokens=5' at policy.toml limits\[0\] sets"
    ):
        effective(environ={}, file=file)


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        ({"flags": ["tokns=5"]}, "--limit: limit 'tokns=5': kind 'tokns' is unknown, did you mean 'tokens'"),
        ({"flags": [5]}, "--limit: limit 5 is not text"),
        ({"flags": "tokens=5"}, "the limits of --limit are 'tokens=5', which is no list"),
        ({"code": "tokens=5"}, "the limits of code are 'tokens=5', which is no list"),
        ({"code": token_limit(5)}, "the limits of code are Limit("),
        ({"code": 5}, "the limits of code are 5, which is no list"),
        ({"code": [5]}, "limit 5 is not text"),
        ({"environ": {"RAVI_LIMIT_TOKENS": "many"}}, "RAVI_LIMIT_TOKENS: limit 'tokens=many'"),
        ({"environ": {"RAVI_LIMIT_TOKENS": ""}}, "RAVI_LIMIT_TOKENS: limit 'tokens=': the value after = is missing"),
        (
            {"environ": {"RAVI_LIMIT_TOKNS": "5"}},
            "variable 'RAVI_LIMIT_TOKNS' names no kind of limit, did you mean RAVI_LIMIT_TOKENS; the kinds",
        ),
        ({"environ": {"RAVI_LIMIT_": "5"}}, "variable 'RAVI_LIMIT_' names no kind of limit; the kinds are RAVI_LIMIT_TOKENS, "),
        ({"environ": {"RAVI_LIMIT_\udcff": "5"}}, "variable 'RAVI_LIMIT_\\udcff' names no kind"),
        ({"environ": {"RAVI_ENFORCEMENT": "off"}}, "RAVI_ENFORCEMENT='off' is unknown: give one of 'enforce', 'observe'"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_its_source(given, begins):
    with pytest.raises(ConfigurationError) as caught:
        effective(**({"environ": {}} | given))
    assert str(caught.value).startswith(begins)
    assert "\n" not in str(caught.value)


def test_a_wrong_flag_is_kept_as_it_was_written():
    with pytest.raises(LimitSyntaxError) as caught:
        effective(flags=["tokens=x"], environ={})
    assert caught.value.spec == "tokens=x"


@given(st.dictionaries(st.text(max_size=20).map("RAVI_LIMIT_".__add__), st.text(max_size=50)))
def test_no_environment_raises_anything_but_our_own_error(environ):
    said = ""
    try:
        policy = effective(environ=environ)
    except ConfigurationError as error:
        said = str(error)
    assert "\n" not in said
    assert said or len(policy.limits) == len(environ)


@pytest.mark.parametrize(("value", "observe"), [("observe", True), (" enforce ", False), ("", False)])
def test_the_environment_says_whether_to_observe(value, observe):
    assert effective(environ={"RAVI_ENFORCEMENT": value}).observe is observe


def test_the_environment_goes_before_the_file(here):
    file = wrote(here, 'enforcement = "observe"')
    asked = effective(environ={"RAVI_ENFORCEMENT": "enforce"}, file=file)
    assert (asked.observe, asked.sources) == (False, {"enforcement": "RAVI_ENFORCEMENT"})
    said = effective(environ={}, file=file)
    assert (said.observe, said.sources) == (True, {"enforcement": "policy.toml"})


def test_nothing_given_is_an_empty_policy():
    policy = effective(environ={})
    assert (policy.limits, policy.prices, policy.tags, policy.name) == ((), None, {}, None)
    assert (policy.observe, policy.admission, policy.sources) == (False, Admission.ESTIMATE, {})


# -- what a program that is run can be held to ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", [*(f"{kind}=5" for kind in Kind), "session.requests=5", "run.tokens=5", "agent.x.tokens=5", "tokens@x=5", "tool.a=1"]
)
def test_a_program_can_be_held_to_its_own_limits(spec):
    check_for_run(effective(flags=[spec], environ={}))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("tenant.cost=5", "limit 'tenant.cost=5' of --limit belongs to a tenant, and a program that is run has none: write session."),
        ("session.agents=5", "counts the agents of one run"),
    ],
)
def test_what_no_program_can_be_held_to_is_said_before_it_starts(spec, words):
    with pytest.raises(ConfigurationError) as caught:
        check_for_run(effective(flags=[spec], environ={}))
    assert words in str(caught.value)


# -- tags ---------------------------------------------------------------------------------------------------------


def test_tags_are_pairs():
    assert read_tags(["team=search", "note=a=b"]) == {"team": "search", "note": "a=b"}


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["team"], "--tag 'team' has no '='"),
        (["team=a", "team=b"], "--tag 'team=b' is there twice: --tag 'team=a' sets the same key"),
        (["Team=a"], "--tag key 'Team' must be lower-case letters"),
        (["team="], "--tag.team='' is empty"),
        (["team=\x1b[31m"], "--tag.team='\\x1b[31m' has a control character"),
        ([f"t{i}=x" for i in range(9)], "--tag has 9 keys"),
    ],
)
def test_a_wrong_tag_is_named(pairs, words):
    with pytest.raises(ConfigurationError) as caught:
        read_tags(pairs)
    assert words in str(caught.value)


def test_tags_are_checked_as_those_of_a_run_are():
    keys = ["a", "a.b_1", "A", "1a", "", "_a", "a" * 40, "a" * 41, "é"]
    for key in keys:
        try:
            taken = bool(scopes.run("x", tags={key: "v"}))
        except ConfigurationError:
            taken = False
        try:
            here = bool(checks.tags("tags", {key: "v"}))
        except ConfigurationError:
            here = False
        assert (key, here) == (key, taken)


@given(st.sampled_from(["tokens", "cost", "time"]), st.integers(1, 1000))
def test_the_words_of_a_limit_read_as_the_limit(kind, value):
    (limit,) = effective(flags=[f" {kind}={value} "], environ={}).limits
    assert parse_limit(limit.spec) == limit.limit == parse_limit(format_limit(limit.limit))
