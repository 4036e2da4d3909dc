"""A policy file with agents, tools and profiles, from wherever it is named, holds what is said in it."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._runtime.config import effective
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import Admission, parse_limit

YAML = """\
limits:
  - requests=500
  - cost=2.50usd
agents:
  researcher:
    limits: [turns=20, tokens=50k]
    admission: after
    warn_at: 0.5
  writer:
    - requests=1
tools:
  search: 5
  "delete all": "1:on=stop"
tags: {team: search, stage: none}
prices:
  gpt-4o-mini: {input: 1000, output: 1000}
profiles:
  ci:
    limits:
      - requests=2
    tools: {search: 1}
    enforcement: observe
    tags: {stage: ci}
    prices:
      other: {input: 1, output: 1}
  production:
    agents: {writer: [requests=3]}
    admission: after
    warn_at: 0.9
  empty: {}
"""
TOML = """\
limits = ["requests=500", "cost=2.50usd"]
[agents]
writer = ["requests=1"]
[agents.researcher]
limits = ["turns=20", "tokens=50k"]
[tools]
search = 5
"delete all" = "1:on=stop"
[profiles.ci]
limits = ["requests=2"]
[profiles.ci.tools]
search = 1
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(YAML, encoding="utf-8")
    (tmp_path / "policy.toml").write_text(TOML, encoding="utf-8")
    return tmp_path


def told(here, name="policy.yaml", environ=(), **more):
    return effective(environ=dict(environ), file=(here / name).relative_to(here), **more)


def sources(policy):
    return {each.spec: each.source for each in policy.limits}


def ask(stage, count):
    """Ask so often, and give how many were let through."""
    done = 0
    with stage.client() as client:
        for _ in range(count):
            try:
                client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
            except BudgetExhaustedError:
                continue
            done += 1
    return done


# -- what a file says -----------------------------------------------------------------------------------------------


def test_agents_and_tools_have_limits_of_their_own_each_with_its_line(here):
    assert sources(told(here)) == {
        "requests=500": "policy.yaml:2",
        "cost=2.50usd": "policy.yaml:3",
        "agent.researcher.turns=20:warn=0.5": "policy.yaml:6",
        "agent.researcher.tokens=50k:warn=0.5:admission=after": "policy.yaml:6",
        "agent.writer.requests=1": "policy.yaml:10",
        "tool.search=5": "policy.yaml:12",
        'tool."delete all"=1:on=stop': "policy.yaml:13",
    }


def test_toml_says_the_same_with_the_keys(here):
    assert sources(told(here, "policy.toml", profile="ci")) == {
        "requests=2": "policy.toml profiles.ci.limits[0] (profile ci)",
        "tool.search=1": "policy.toml profiles.ci.tools.search (profile ci)",
        "cost=2.50usd": "policy.toml limits[1]",
        "agent.writer.requests=1": "policy.toml agents.writer[0]",
        "agent.researcher.turns=20": "policy.toml agents.researcher.limits[0]",
        "agent.researcher.tokens=50k": "policy.toml agents.researcher.limits[1]",
        'tool."delete all"=1:on=stop': "policy.toml tools.delete all",
    }


def test_a_profile_replaces_lines_for_the_same_thing_and_leaves_the_others(here):
    policy = told(here, profile="ci")
    assert sources(policy)["requests=2"] == "policy.yaml:20 (profile ci)"
    assert sources(policy)["tool.search=1"] == "policy.yaml:21 (profile ci)"
    assert [each.spec for each in policy.limits[0].instead_of] == ["requests=500"]
    assert len(policy.limits) == len(told(here).limits)
    assert (policy.observe, policy.tags, set(policy.prices)) == (True, {"team": "search", "stage": "ci"}, {"gpt-4o-mini", "other"})
    assert policy.sources["tags"] == "policy.yaml (profile ci), policy.yaml"


def test_a_profile_may_change_nothing(here):
    assert sources(told(here, profile="empty")) == sources(told(here))


def test_the_whole_of_the_settings_follows_the_profile(here):
    policy = told(here, profile="production")
    assert (policy.admission, policy.warn_at, policy.profile) == (Admission.AFTER, 0.9, "production")
    assert {key: policy.sources[key] for key in ("admission", "warn_at", "profile")} == {
        "admission": "policy.yaml (profile production)",
        "warn_at": "policy.yaml (profile production)",
        "profile": "--profile",
    }


@pytest.mark.parametrize("sources", range(1, 8))
def test_flag_goes_before_variable_before_profile_before_file(here, sources):
    """The bits of `sources` say which of them state an admission."""
    (here / "all.yaml").write_text("admission: after\nprofiles: {p: {admission: estimate}, q: {}}")
    flag, variable, profile = ("strict" if sources & 1 else None), ("after" if sources & 2 else ""), ("p" if sources & 4 else "q")
    policy = told(here, "all.yaml", {"RAVI_ADMISSION": variable}, profile=profile, admission=flag)
    assert policy.admission == (flag or variable or ("estimate" if profile == "p" else "after"))


def test_a_variable_names_the_file_and_the_profile_when_nobody_else_does(here):
    policy = effective(environ={"RAVI_POLICY": "policy.yaml", "RAVI_PROFILE": "ci", "RAVI_LIMIT_REQUESTS": "7"})
    assert sources(policy)["requests=7"] == "RAVI_LIMIT_REQUESTS"
    assert [each.source for each in policy.limits[0].instead_of] == ["policy.yaml:20 (profile ci)", "policy.yaml:2"]
    assert effective(environ={"RAVI_POLICY": "policy.yaml", "RAVI_PROFILE": "ci"}, profile="empty").profile == "empty"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agents: 5", "p.yaml:1: agents is 5, which is no table: write {researcher:"),
        ("agents: {x: 5}", "p.yaml:1: agents.x is 5, which is no list"),
        (
            "agents: {x: {limit: []}}",
            "p.yaml:1: 'limit' is no key of an agent, did you mean 'limits'; the keys are limits, admission, warn_at",
        ),
        ("agents:\n  x:\n  - tokns=5", "p.yaml:3: limit 'tokns=5': kind 'tokns' is unknown"),
        ("agents: {x: [session.tokens=5]}", "p.yaml:1: 'session.tokens=5' says itself where it belongs: leave that out under agents.x"),
        ("agents: {x: [tokens@y=5]}", "says itself where it belongs"),
        ("agents: {x: {warn_at: 2}}", "p.yaml:1: agents.x.warn_at=2 must be a share"),
        ("agents: {'': []}", "p.yaml:1: the name in agents='' is empty"),
        ("tools: [search]", "p.yaml:1: tools is ['search'], which is no table: write {search: 5}"),
        ("tools: {search: }", "p.yaml:1: tools.search=None must be a whole number"),
        ("tools:\n  a: 1\n  b: -1", "p.yaml:3: tools.b=-1 must be a whole number"),
        ("tools: {a: 5x}", "p.yaml:1: tools.a='5x': unit 'x' is unknown here"),
        ("tools: {'delete_*': 5}", "p.yaml:1: tools has 'delete_*', and no patterns are known: name each tool in full"),
        ("tools: {a: 1}\nlimits: [tool.a=2]", "'tool.a=1' at p.yaml:1 is there twice: 'tool.a=2' at p.yaml:2 sets the same limit"),
        ("profiles: [ci]", "p.yaml:1: profiles is ['ci'], which is no table"),
        ("profiles: {ci: }", "p.yaml:1: profiles.ci is None, which is no table: write {} for one that changes nothing"),
        ("profiles:\n  ci:\n    limts: []", "p.yaml:2: 'limts' is no key of a profile, did you mean 'limits'"),
        ("profiles:\n  ci:\n    profiles: {}", "p.yaml:2: 'profiles' is no key of a profile"),
        (
            "profiles:\n  ci:\n    enforcement: off",
            "p.yaml:3: profiles.ci.enforcement is off, a switch: give 'observe', which refuses nothing, or 'enforce'",
        ),
        ("profiles:\n  ci:\n    limits: [tokens=x]", "p.yaml:3: limit 'tokens=x'"),
        ("profiles: {ci: {limits: [tokens=5, token=6]}}", "is there twice"),
        ("name: a\nwarn_at: high", "p.yaml:2: warn_at='high' must be a share of the limit"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_in_a_profile_that_is_not_chosen_too(here, text, words):
    (here / "p.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        told(here, "p.yaml")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_profile_lists_those_there_are(here):
    with pytest.raises(ConfigurationError) as caught:
        told(here, profile="produktion")
    assert str(caught.value) == (
        "--profile='produktion' is no profile of policy.yaml, did you mean 'production'; its profiles are 'ci', 'production', 'empty'."
    )


def test_tags_of_file_and_profile_together_are_not_too_many(here):
    tags = ", ".join(f"t{number}: x" for number in range(8))
    (here / "p.yaml").write_text(f"tags: {{{tags}}}\nprofiles: {{ci: {{tags: {{more: x}}}}}}")
    with pytest.raises(ConfigurationError, match="tags has 9 keys"):
        told(here, "p.yaml", profile="ci")


# -- what comes of it in a program ----------------------------------------------------------------------------------


def test_a_file_named_in_code_holds_the_program(here, stage):
    with ravi_otel.instrument(policy="policy.yaml", limits=["requests=4"]), ravi_otel.agent("writer"):
        assert ask(stage, 3) == 1
    assert stage.sent == 1


def test_a_profile_named_in_code_is_chosen(here, stage):
    with ravi_otel.instrument(policy=here / "policy.yaml", profile="production"), ravi_otel.agent("writer"):
        assert ask(stage, 5) == 3


def test_the_variables_hold_a_program_that_says_nothing(here, stage, monkeypatch):
    monkeypatch.setenv("RAVI_POLICY", "policy.yaml")
    monkeypatch.setenv("RAVI_PROFILE", "production")
    with ravi_otel.instrument(), ravi_otel.agent("writer"):
        assert ask(stage, 5) == 3


def test_code_goes_before_the_file(here, stage):
    with ravi_otel.instrument(policy="policy.yaml", profile="ci", limits=["requests=3"], enforcement="enforce"):
        assert ask(stage, 5) == 3


@pytest.mark.parametrize("tool", ["search"])
def test_a_tool_is_held_to_its_number(here, tool):
    (here / "p.yaml").write_text(f"tools: {{{tool}: 2}}")
    calls = []
    with ravi_otel.instrument(policy="p.yaml"):
        held = ravi_otel.tool(name=tool)(lambda: calls.append(1))
        for _ in range(2):
            held()
        with pytest.raises(BudgetExhaustedError):
            held()
    assert len(calls) == 2


def test_prices_of_code_and_of_the_file_stand_together(here, stage):
    with ravi_otel.instrument(policy="policy.yaml", prices={"other": {"input": 1, "output": 1}}), ravi_otel.run("x") as run:
        ask(stage, 1)
        assert run.cost_usd == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        ({"policy": "gone.yaml"}, {}, "policy file gone.yaml cannot be read"),
        ({}, {"RAVI_POLICY": "gone.yaml"}, "policy file gone.yaml cannot be read"),
        ({"policy": "policy.yaml", "profile": "cii"}, {}, r"instrument\(profile\)='cii' is no profile of policy.yaml, did you mean 'ci'"),
        ({"profile": "ci"}, {}, r"instrument\(profile\)='ci' chooses a profile, and there is no policy file"),
        ({}, {"RAVI_PROFILE": "ci"}, "RAVI_PROFILE='ci' chooses a profile, and there is no policy file"),
        ({}, {"RAVI_ENFORCEMENT": "off"}, "RAVI_ENFORCEMENT='off' is unknown"),
        ({}, {"RAVI_ADMISSION": "tight"}, "RAVI_ADMISSION='tight' is unknown"),
        ({}, {"RAVI_WARN_AT": "0"}, "RAVI_WARN_AT='0' must be a share"),
        ({"policy": b"policy.yaml"}, {}, "is no path"),
    ],
)
def test_what_cannot_be_used_is_said_at_instrument_and_nothing_is_wrapped(here, monkeypatch, arguments, environ, words):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=words):
        ravi_otel.instrument(**arguments)
    assert not STATE.instrumented


# -- shadow mode, admission and the warning share -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "variable", "let_through"),
    [
        (None, None, 1),
        (None, "observe", 3),
        (None, "enforce", 1),
        ("enforce", "observe", 1),
        ("observe", "enforce", 3),
        ("observe", None, 3),
    ],
)
def test_code_goes_before_the_variable_for_shadow_mode(stage, monkeypatch, code, variable, let_through):
    if variable:
        monkeypatch.setenv("RAVI_ENFORCEMENT", variable)
    with ravi_otel.instrument(limits=["requests=1"], enforcement=code):
        assert ask(stage, 3) == let_through


@pytest.mark.parametrize(
    ("code", "variable", "held"), [(None, None, "estimate"), (None, "after", "after"), ("estimate", "after", "estimate")]
)
def test_code_goes_before_the_variable_for_admission(monkeypatch, code, variable, held):
    if variable:
        monkeypatch.setenv("RAVI_ADMISSION", variable)
    with ravi_otel.instrument(admission=code):
        assert STATE.engine.admission == held


def test_all_three_admissions_can_be_asked_for():
    for mode in Admission:
        with ravi_otel.instrument(admission=mode.value):
            assert STATE.engine.admission is mode


@pytest.mark.parametrize(("share", "nearing"), [(None, 8), ("0.3", 3), ("1", 10)])
def test_the_warning_share_of_the_process_is_that_of_limits_which_state_none(stage, monkeypatch, share, nearing):
    if share:
        monkeypatch.setenv("RAVI_WARN_AT", share)
    told: list[tuple[str, float]] = []
    with ravi_otel.instrument(limits=["requests=10", "turns=10:warn=0.5"]) as handle:
        handle.listen(Near(told))
        ask(stage, 10)
    assert dict(told) == {"requests": nearing, "turns": 5}


class Near(ravi_otel.hooks._listeners.Listener):
    def __init__(self, told):
        self._told = told

    def limit_event(self, event, at):
        if event.event == "limit_nearing":
            self._told.append((event.limit_kind, event.used + event.held))


def test_a_limit_that_is_set_anew_keeps_the_share_of_the_process(monkeypatch):
    monkeypatch.setenv("RAVI_WARN_AT", "0.3")
    with ravi_otel.instrument(), ravi_otel.run("x", limits=["requests=10"]) as run:
        run.set_limit("requests", 20)
        assert [account.warn_value for account in run.scope.accounts if account.kind == "requests"] == [6]


# -- any bytes ------------------------------------------------------------------------------------------------------

snippets = st.sampled_from([line + "\n" for line in (YAML + TOML).splitlines()]) | st.sampled_from(
    ["- ", "{", "}", "[", "]", ": ", "&a ", "*a ", "\t"]
)


@settings(
    max_examples=int(os.environ.get("RAVI_LONG", "100")),
    deadline=10_000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(snippets | st.text(max_size=8), max_size=25).map("".join), st.sampled_from(["toml", "yaml"]))
def test_a_file_in_pieces_is_a_policy_or_one_sentence_soon(here, text, ending):
    (here / f"torn.{ending}").write_bytes(text.encode("utf-8", "surrogatepass"))
    said = ""
    try:
        told(here, f"torn.{ending}", profile="ci")
    except ConfigurationError as error:
        said = str(error)
    assert "\n" not in said


@settings(max_examples=int(os.environ.get("RAVI_LONG", "200")), deadline=10_000)
@given(st.lists(st.sampled_from(list('tokens=5k.@":warn\\ agent.session')) | st.text(max_size=5), max_size=40).map("".join))
def test_any_text_is_a_limit_or_one_sentence_soon(text):
    said = ""
    try:
        parse_limit(text)
    except ConfigurationError as error:
        said = str(error)
    assert "\n" not in said
