from __future__ import annotations

import ast
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ravi_otel.errors import LimitSyntaxError
from ravi_otel.policy import Kind, Limit, Outcome, ScopeKind, format_limit, parse_limit, parse_limits
from ravi_otel.policy._checks import MAX_COUNT, MAX_NANO, WINDOWS, flaw_of_name
from ravi_otel.policy._grammar import MAX_SPEC, read_kind
from ravi_otel.policy._limits import SPENDS, cost_limit, make_limit, token_limit

S = 10**9
DOCUMENTED = {
    "message=24": Limit(kind="messages", value=24),
    "time=90s": Limit(kind="time", value=90 * S),
    "tokens=500k": Limit(kind="tokens", value=500_000),
    "cost=2.50usd": Limit(kind="cost", value=2_500_000_000),
    "tool_calls=8": Limit(kind="tool_calls", value=8),
    "tool.search=5": Limit(kind="tool_calls", value=5, detail="search"),
    "handoff.researcher.message=12": Limit(kind="messages", value=12, scope=ScopeKind.HANDOFF, scope_name="researcher"),
    "session.requests=500": Limit(kind="requests", value=500, scope=ScopeKind.SESSION),
    "agents=10": Limit(kind="agents", value=10),
    "tokens@researcher=50k": Limit(kind="tokens", value=50_000, agent="researcher"),
}
READ = {
    "tokens=0": Limit(kind="tokens", value=0),
    "tokens=1.5M": Limit(kind="tokens", value=1_500_000),
    "tokens=0.5K": Limit(kind="tokens", value=500),
    "tokens=5.": Limit(kind="tokens", value=5),
    "tokens = 5": Limit(kind="tokens", value=5),
    "  agent . researcher . tokens = 5 k : on = stop ": Limit(
        kind="tokens", value=5_000, scope=ScopeKind.AGENT, scope_name="researcher", on_exceed=Outcome.STOP
    ),
    "cost=$2": Limit(kind="cost", value=2 * S),
    "cost=.5": Limit(kind="cost", value=S // 2),
    "cost=2 USD": Limit(kind="cost", value=2 * S),
    "time=90": Limit(kind="time", value=90 * S),
    "time=250ms": Limit(kind="time", value=S // 4),
    "time=5m": Limit(kind="time", value=300 * S),
    "working=1.5h": Limit(kind="working", value=5_400 * S),
    "depth=0": Limit(kind="depth", value=0),
    "agents_total@researcher=20": Limit(kind="agents_total", value=20, agent="researcher"),
    "agent.orchestrator.fan_out=4": Limit(kind="fan_out", value=4, scope=ScopeKind.AGENT, scope_name="orchestrator"),
    "fan_out@orchestrator=0": Limit(kind="fan_out", value=0, agent="orchestrator"),
    "agent=3": Limit(kind="agents", value=3),
    "input_token=3": Limit(kind="input_tokens", value=3),
    "tool_calls.search=5": Limit(kind="tool_calls", value=5, detail="search"),
    "tool.fs.read=5": Limit(kind="tool_calls", value=5, detail="fs.read"),
    "tool.tokens=5": Limit(kind="tool_calls", value=5, detail="tokens"),
    "tool.search@researcher=5": Limit(kind="tool_calls", value=5, detail="search", agent="researcher"),
    "tokens@gpt.4=5": Limit(kind="tokens", value=5, agent="gpt.4"),
    "agent.tokens=5": Limit(kind="tokens", value=5, scope=ScopeKind.AGENT),
    "agent.tokens.tokens=5": Limit(kind="tokens", value=5, scope=ScopeKind.AGENT, scope_name="tokens"),
    "agent.gpt.4.tokens=5": Limit(kind="tokens", value=5, scope=ScopeKind.AGENT, scope_name="gpt.4"),
    "agent.tool.search=5": Limit(kind="tool_calls", value=5, scope=ScopeKind.AGENT, detail="search"),
    'agent."tool".tokens=5': Limit(kind="tokens", value=5, scope=ScopeKind.AGENT, scope_name="tool"),
    'tool."a=b:c@d \\"e\\" \\\\" =5': Limit(kind="tool_calls", value=5, detail='a=b:c@d "e" \\'),
    "block.plan.tool.search=5": Limit(kind="tool_calls", value=5, scope=ScopeKind.BLOCK, scope_name="plan", detail="search"),
    "tenant.cost=5": Limit(kind="cost", value=5 * S, scope=ScopeKind.TENANT),
    "run.turns@x=5": Limit(kind="turns", value=5, scope=ScopeKind.RUN, agent="x"),
    "charge.sql_rows=1k": Limit(kind="sql_rows", value=1_000),
    "session.charge.sql_rows=1": Limit(kind="sql_rows", value=1, scope=ScopeKind.SESSION),
    "tokens=5:warn=0.5:on=stop:per=day:tz=Europe/Berlin:admission=strict:unpriced=warn:unbounded=admit:store=open": Limit(
        kind="tokens",
        value=5,
        warn_at=0.5,
        on_exceed=Outcome.STOP,
        per="day",
        tz="Europe/Berlin",
        admission="strict",
        on_unpriced="warn",
        on_unbounded="admit",
        on_store_failure="open",
    ),
}
WRONG = {
    "": "'=' and a value are missing",
    "tokens": "'=' and a value are missing",
    "=": "the kind is missing",
    "=5": "the kind is missing",
    "tokens=": "the value after = is missing",
    "tokens=:warn=0.5": "the value after = is missing",
    "tokens:warn=0.5": "':' stands before the value; options come behind it",
    "tool:search=5": "a dot stands before a name, no colon: write 'tool.search'",
    "session.charge: sql_rows=5": "write 'session.charge.sql_rows'",
    "tool:per=day": "':' stands before the value; options come behind it",
    "tokns=5": "kind 'tokns' is unknown, did you mean 'tokens'; the kinds are tokens, input_tokens",
    "TOKENS=5": "kind 'TOKENS' is unknown, did you mean 'tokens'",
    "sql_rows=5": "charge.NAME is one your program charges itself",
    "session.tokes=5": "did you mean 'tokens'",
    "tools.search=5": "kind 'search' is unknown, did you mean 'tool.search'",
    "session.charges.rows=5": "did you mean 'charge.rows'",
    "agents@x=5": "fan_out@NAME limits the live agents under each of them, agents_total@NAME how many of them are entered",
    "time@x=5s": "write agent.NAME. in front. For example: agent.researcher.message=12",
    "agent.x.tokens@y=5": "leave the @ and what follows it out",
    '"tokens"=5': "kind 'tokens' is unknown",
    f"{'x' * 200}=5": "is unknown",
    "tool=5": "tool needs a name, such as tool.search",
    "charge=5": "charge needs a name",
    "tool.=5": "the name of the tool is empty",
    "tool.a..b=5": "the name of the tool has an empty part",
    "tool.a\x07b=5": "the name of the tool has a control character",
    f"tool.{'x' * 257}=5": "the name of the tool is longer than 256 characters",
    'tool."x=5': "a closing quote is missing",
    'tool."x\\': "a closing quote is missing",
    'tool."x"y=5': "'y' stands before the value",
    "charge.tokens=5": "'tokens' is built in, so write it without charge",
    "charge.token=5": "'token' is built in",
    "agnt.x.tokens=5": "'agnt' is no scope, did you mean 'agent'; the scopes are tenant, session",
    "researcher.tokens=5": "'researcher' is no scope, for an agent write agent.researcher.",
    "process.tokens=5": "'process' is no scope",
    "agent..tokens=5": "the name of the agent is empty",
    "run.triage.tokens=5": "run takes no name, so leave 'triage' out",
    "tokens@=5": "the name of the agent after @ is empty",
    "tokens@a@b=5": "@ is there twice",
    "time@x=5": "@ sums what all agents of a name spend, which time cannot be",
    "agent.y.tokens@x=5": "which agent cannot be",
    "tokens=-1": "'-1' is negative; 0 allows nothing",
    "tokens=1.5": "value '1.5' is a fraction of what can be counted",
    "tokens=0.0001k": "is a fraction",
    "cost=0.0000000001": "is a fraction",
    "tokens=5m": "unit 'm' is unknown here; use k, K, M or none",
    "tokens=5 tokens": "unit 'tokens' is unknown here",
    "time=5d": "unit 'd' is unknown here; use ms, s, m, h or none",
    "tokens=1,000": "value '1,000' is not a number",
    "tokens=\u0661": "is not a number",
    "tokens=1e5": "is not a number",
    "tokens=k": "is not a number",
    "tokens=.": "is not a number",
    "tokens=+5": "is not a number",
    "cost=usd": "is not a number",
    "cost=5eur": "has another unit than usd, which is the only one known",
    "cost=$-5": "is not a number",
    f"tokens={'9' * 41}": "is not a number",
    f"tokens={'9' * 40}": "is too large",
    "tokens=9007199254740993": "is too large",
    "time=10000000000": "is too large",
    "agents=0": "agents must be at least 1",
    "tokens=5:wran=0.5": "option 'wran=0.5' is unknown, did you mean warn=…; write one of warn=…, on=…",
    "tokens=5:warn": "option 'warn' is unknown; write one of",
    "tokens=5:on=": "option 'on=' is unknown; write one of",
    "tokens=5:": "option '' is unknown",
    "tokens=5:on=stop:on=raise": "option on is there twice",
    "tokens=5:on=explode": "on='explode' is unknown: give one of 'raise', 'stop'",
    "tokens=5:warn=2": "warn=2.0 must be a share of the limit",
    "tokens=5:warn=much": "warn='much' must be a share of the limit",
    "tokens=5:by=me": "by='me' must be one of user, model, tenant, or tag.NAME",
    "tokens=5:by=tag.": "by='tag.' must be one of user",
    "tokens=5:tz=Mars": "tz='Mars' is no time zone",
    "tokens=5:by=users": "did you mean 'user'? For example: requests=500:per=day:tz=Europe/Berlin:by=user",
    "user.tokens=5": "'user' is no scope, for each user write :by=user behind the value; the scopes are",
    "tokens=5:per=0m": "per='0m' must be one of minute",
    "tokens=5:per=daily": "or a duration such as '15m' (s, m, h, d); did you mean 'day'? For example: requests=500:per=day",
    "tokens=5:per=day,by=user": "a colon stands before each option: write per=day:by=user. For example",
    "tokens=5:tz=Mars:per=day": "For example: requests=500:per=day:tz=Europe/Berlin:by=user",
    "tokens=5/day": "the window is an option: write '5:per=day'",
    "cost=5usd per month": "the window is an option: write '5usd:per=month'",
    "x" * (MAX_SPEC + 1): f"it is longer than {MAX_SPEC} characters",
}
names = st.text(min_size=1, max_size=256).filter(lambda text: flaw_of_name(text) is None)
simple = st.sampled_from(["researcher", "tokens", "tool", "agent", "charge", "a.b", '"', "\\", " x ", "=", ":", "@", "gpt-4_1"])
any_name = names | simple
fragments = st.sampled_from(
    [
        *'=.:@"\\-$ km0159',
        "tokens",
        "tool",
        "charge",
        "agent",
        "session",
        "usd",
        "warn",
        "per",
        "tz",
        "on",
        "stop",
        "1.5",
        "\x00",
        "é",
        "\ud800",
    ]
)


@st.composite
def limits(draw):
    kind = draw(st.sampled_from([*Kind, "own"]))
    summed = kind not in {Kind.TIME, Kind.WORKING, Kind.MESSAGES, Kind.AGENTS, Kind.DEPTH}
    least = 1 if kind == Kind.AGENTS else 0
    most = MAX_NANO if kind in {Kind.COST, Kind.TIME, Kind.WORKING} else MAX_COUNT
    value = draw(st.integers(least, most) | st.integers(1, 900).map(lambda number: number * 1_000_000))
    options = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "scope": st.sampled_from(["tenant", "session", "run", "handoff", "block", "agent"]),
                "per": st.sampled_from(["minute", "month", "15m", "7d"]),
                "tz": st.sampled_from(["UTC", "Europe/Berlin"]),
                "by": st.sampled_from(["user", "tenant", "tag.team", "tag.é=/"]),
                "warn_at": st.floats(0.001, 1),
                "on_exceed": st.sampled_from(list(Outcome)),
                "admission": st.sampled_from(["estimate", "strict", "after"]),
                "on_unpriced": st.sampled_from(["refuse", "warn"]),
                "on_unbounded": st.sampled_from(["refuse", "window", "admit"]),
                "on_store_failure": st.sampled_from(["closed", "open"]),
                "suspend": st.sampled_from(["refuse", "allow"]),
            },
        )
    )
    if options.get("scope") in {"handoff", "block", "agent"} and draw(st.booleans()):
        options["name"] = draw(any_name)
    detail = draw(st.none() | any_name.filter(lambda text: "*" not in text)) if kind == Kind.TOOL_CALLS else None
    if kind not in SPENDS:
        options.pop("admission", None)
    if kind not in SPENDS | {Kind.REQUESTS, Kind.TURNS} and options.get("on_exceed") is Outcome.FINAL:
        del options["on_exceed"]
    if options.get("per") not in WINDOWS:
        options.pop("tz", None)
    if kind not in {*SPENDS, Kind.REQUESTS, Kind.TURNS, Kind.TOOL_CALLS, "own"} or options.get("on_exceed") is Outcome.FINAL:
        options = {name: given for name, given in options.items() if name not in {"per", "tz", "by"}}
    agent = draw(st.none() | any_name) if summed and options.get("scope") != "agent" else None
    if kind == "own":
        kind = draw(any_name.filter(lambda text: text != "tokens" and text.rstrip("s") not in {str(kind).rstrip("s") for kind in Kind}))
    return make_limit(kind, value, options, detail=detail, agent=agent)


@pytest.mark.parametrize("spec", DOCUMENTED)
def test_the_documented_limits_are_read(spec):
    assert parse_limit(spec) == DOCUMENTED[spec]


@pytest.mark.parametrize("spec", READ)
def test_a_limit_is_read(spec):
    assert parse_limit(spec) == READ[spec]


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_read_in_singular_and_plural(kind):
    assert parse_limit(f"{kind}=5").kind == kind
    assert parse_limit(f"{kind.removesuffix('s')}=5").kind == kind


@pytest.mark.parametrize("spec", WRONG)
def test_what_is_wrong_is_named(spec):
    with pytest.raises(LimitSyntaxError) as caught:
        parse_limit(spec)

    message = str(caught.value)
    assert WRONG[spec] in message
    assert message.startswith("limit ")
    assert caught.value.spec == spec


@pytest.mark.parametrize("spec", WRONG)
def test_every_error_ends_with_a_limit_that_can_be_read(spec):
    with pytest.raises(LimitSyntaxError) as caught:
        parse_limit(spec)

    parse_limit(str(caught.value).rpartition("For example: ")[2])


@pytest.mark.parametrize(("spec", "example_kind"), [("cost=x", "cost"), ("input_tokens=x", "input_tokens"), ("agents=0", "agents")])
def test_the_example_is_of_the_kind_that_was_meant(spec, example_kind):
    with pytest.raises(LimitSyntaxError) as caught:
        parse_limit(spec)

    assert parse_limit(str(caught.value).rpartition("For example: ")[2]).kind == example_kind


@pytest.mark.parametrize("wrong", [None, 5, b"tokens=5", []])
def test_what_is_no_text_is_refused(wrong):
    with pytest.raises(LimitSyntaxError, match=r"is not text; write it like tokens=500k\.$"):
        parse_limit(wrong)


@given(limits())
@example(Limit(kind="cost", value=1))
@example(Limit(kind="tokens", value=0))
def test_what_is_written_is_read_back(limit):
    assert parse_limit(format_limit(limit)) == limit


@given(limits())
@example(parse_limit("tokens=5:count=input+4*output-cached"))
@example(parse_limit('session.charge."a \\"b\\\\".c"=5:per=90m:by=tag.team'))
@example(parse_limit("cost=0.000000001usd:unpriced=warn:unbounded=admit:store=open:suspend=allow:admission=strict:warn=0.5:on=stop"))
def test_a_limit_shows_itself_as_it_would_be_written(limit):
    shown = re.fullmatch(r"Limit\((.*)\)", repr(limit))
    assert parse_limit(ast.literal_eval(shown[1])) == limit


def test_the_repr_of_a_limit_is_short():
    assert repr(cost_limit(0.01)) == "Limit('cost=0.01usd')"
    assert repr([token_limit(50_000, scope="agent", name="a b")]) == """[Limit('agent."a b".tokens=50k')]"""


@pytest.mark.parametrize(
    ("spec", "written"),
    [
        ("tokens=2000000", "tokens=2M"),
        ("tokens=1500", "tokens=1500"),
        ("cost=$2.50", "cost=2.5usd"),
        ("time=1m", "time=60s"),
        ("tool.fs.read=1", 'tool."fs.read"=1'),
        ("message=24", "messages=24"),
    ],
)
def test_a_limit_is_written_short(spec, written):
    assert format_limit(parse_limit(spec)) == written


@given(st.text(max_size=300) | st.lists(fragments, max_size=30).map("".join))
def test_no_text_raises_anything_but_its_own_error(spec):
    try:
        limit = parse_limit(spec)
    except LimitSyntaxError:
        return
    assert parse_limit(format_limit(limit)) == limit


@pytest.mark.parametrize("piece", ["a.", '"', '""', "\\", "@", "=", ":", "9", " ", ".", "tool.", "k", 'tool."\\'])
def test_hostile_text_takes_no_time(piece):
    spec = (piece * MAX_SPEC)[:MAX_SPEC]
    began = time.thread_time()
    for text in (spec, f"tool.{spec}"[:MAX_SPEC], f"tokens={spec}"[:MAX_SPEC], piece * 1_000_000):
        with pytest.raises(LimitSyntaxError):
            parse_limit(text)
    assert time.thread_time() - began < 5  # of this thread's own work; to look at each character again for each takes minutes


def test_several_limits_keep_their_order():
    assert parse_limits(["time=90s", "tokens=5"]) == (parse_limit("time=90s"), parse_limit("tokens=5"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tokens=5", "token=6:on=stop"),
        ("tool.search=5", "tool_calls.search=6"),
        ("tokens@x=5", 'tokens@"x"=6'),
        ("agent.x.cost=1", "agent.x.cost=2"),
    ],
)
def test_two_limits_of_one_thing_are_both_named(first, second):
    with pytest.raises(LimitSyntaxError) as caught:
        parse_limits(["time=9", first, second])

    assert repr(first) in str(caught.value)
    assert repr(second) in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tokens=5", "tokens=6:per=day"),
        ("tokens=5:per=day", "tokens=6:per=day:by=user"),
        ("tokens=5", "tokens@x=5"),
        ("tool.a=5", "tool.b=5"),
        ("tokens=5", "run.tokens=5"),
        ("tool.a=1", "tool_calls=1"),
    ],
)
def test_limits_of_different_things_stand_side_by_side(first, second):
    assert len(parse_limits([first, second])) == 2


def test_one_text_is_no_list():
    with pytest.raises(LimitSyntaxError, match=r"is one text; give a list"):
        parse_limits("tokens=5")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("requests=5:admission=strict", "admission=strict concerns limits of tokens and cost, not one of requests"),
        ("tool.*=5", "'*' is a pattern, and none are known"),
        ("tool.x=5:on=final", "of tool.x nothing can be: write stop"),
        ("time=5s:on=final", "of time nothing can be: write stop"),
        ("tokens=5:tz=UTC", "tz='UTC' says when a window begins: give per='day'"),
        ("tokens=5:per=15m:tz=UTC", "tz='UTC' says when a window begins: give per='day'"),
        ("time=5s:per=day", "per=day goes with what is counted up, such as tokens, cost, requests or tool calls, not with time"),
        ("messages=5:by=user", "by=user goes with what is counted up"),
        ("agents=5:per=1h", "per=1h goes with what is counted up"),
        ("tokens=5:per=day:on=final", "a limit with per=day has none: write stop instead"),
        ("tool.x=5:by=model", "by=model goes with what a call of a model uses"),
        ("requests=abc", "value 'abc' is not a number"),
    ],
)
def test_what_would_change_nothing_is_refused(spec, said):
    with pytest.raises(LimitSyntaxError, match=re.escape(said)):
        parse_limit(spec)


@pytest.mark.parametrize(
    ("word", "name", "agent"),
    [
        ("request", "requests", None),
        ("tool_call.a.b", "tool.a.b", None),
        ("charge.sql_rows", "sql_rows", None),
        ("tokens@x", "tokens", "x"),
    ],
)
def test_a_kind_is_read_as_limits_spell_it(word, name, agent):
    found = read_kind("kind", word)
    assert (found.name, found.agent) == (name, agent)


def test_a_kind_of_ones_own_may_be_asked_for_without_its_prefix():
    with pytest.raises(LimitSyntaxError, match="kind='tokns': kind 'tokns' is unknown, did you mean 'tokens'"):
        read_kind("kind", "tokns")
    with pytest.raises(LimitSyntaxError, match=r"kind='tool:look_up': a dot stands before a name, no colon: write 'tool\.look_up'\.$"):
        read_kind("kind", "tool:look_up")
    with pytest.raises(LimitSyntaxError, match=r"kind='cost:per=day': a kind stands alone here, without options: write 'cost'\.$"):
        read_kind("kind", "cost:per=day")
    assert read_kind("kind", "sql_rows@x", own=True) == ("sql_rows", None, "x", None, None)
    with pytest.raises(LimitSyntaxError, match="here stands a kind alone"):
        read_kind("kind", "tokens=5")
