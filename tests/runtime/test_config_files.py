"""What a policy file may say, and what happens when it says something else."""

from __future__ import annotations

import os
import sys
import time
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ravi_otel._pricing import PriceBook
from ravi_otel._runtime.config import effective
from ravi_otel._runtime.policy_file import MOST_BYTES, MOST_LINE
from ravi_otel.errors import ConfigurationError, MissingExtraError
from ravi_otel.policy import Admission, parse_limit

TOML = """
name = "nightly"
enforcement = "observe"
admission = "after"
limits = [
    "tokens=500k",
    'agent."a b".turns=20',
    {kind = "cost", value = 2.5, warn_at = 0.5, on_exceed = "stop"},
]

[tags]
team = "search"

[prices.my-model]
input = 2.5
output = "10"
"""
YAML = """
name: nightly
enforcement: observe
admission: after
limits:
  - tokens=500k
  - agent."a b".turns=20
  - kind: cost
    value: 2.5
    warn_at: 0.5
    on_exceed: stop
tags: {team: search}
prices:
  my-model: {input: 2.5, output: "10"}
"""
LONGEST_S = 10  # of this thread's own work; a hang is minutes


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(text, ending="toml"):
        path = tmp_path / f"policy.{ending}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return effective(environ={}, file=path.relative_to(tmp_path))

    return read


def flaw(read, text, ending="toml"):
    with pytest.raises(ConfigurationError) as caught:
        read(text, ending)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900
    return str(caught.value)


def said(read, *arguments):
    """Give what is said about a file, nothing when it can be used."""
    try:
        read(*arguments)
    except ConfigurationError as error:
        return str(error)
    return ""


# -- what it may say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ending", "lines"), [(TOML, "toml", [None, None, None]), (YAML, "yaml", [6, 7, 8]), (YAML, "yml", [6, 7, 8])]
)
def test_both_formats_say_the_same(read, text, ending, lines):
    policy = read(text, ending)
    file = f"policy.{ending}"
    assert policy.values == tuple(map(parse_limit, ["tokens=500k", 'agent."a b".turns=20', "cost=2.5usd:warn=0.5:on=stop"]))
    assert [each.source for each in policy.limits] == [
        f"{file} limits[{at}]" if line is None else f"{file}:{line}" for at, line in enumerate(lines)
    ]
    assert (policy.name, policy.observe, policy.admission, policy.tags) == ("nightly", True, Admission.AFTER, {"team": "search"})
    assert PriceBook(policy.prices)
    assert policy.prices == {"my-model": {"input": 2.5, "output": "10"}}
    assert policy.sources == dict.fromkeys(("name", "tags", "prices", "enforcement", "admission"), file)


def test_tables_of_limits_have_their_places(read):
    policy = read('[[limits]]\nkind = "tokens"\nvalue = 5\n\n[[limits]]\nkind = "time"\nvalue = 90\n')
    assert [(each.spec, each.source) for each in policy.limits] == [
        ("tokens=5", "policy.toml limits[0]"),
        ("time=90s", "policy.toml limits[1]"),
    ]


def test_a_line_that_cannot_be_told_is_not_made_up(read):
    policy = read('# not "tokens=5"\nlimits = ["tokens=5", "tok\\u0065ns@x=5"]\n')
    assert [each.source for each in policy.limits] == ["policy.toml limits[0]", "policy.toml limits[1]"]


@pytest.mark.parametrize(
    ("table", "meant"),
    [
        ('kind = "tokens", value = 500_000', "tokens=500k"),
        ('kind = "token", value = "500k"', "tokens=500k"),
        ('kind = "cost", value = 0.1', "cost=0.1usd"),
        ('kind = "cost", value = "2.50usd"', "cost=2.5usd"),
        ('kind = "time", value = 90', "time=90s"),
        ('kind = "time", value = "5m"', "time=300s"),
        ('kind = "tool_calls", value = 5, tool = "a b"', 'tool."a b"=5'),
        ('kind = "tool.search", value = 5', "tool.search=5"),
        ('kind = "charge.sql_rows", value = "1k"', "charge.sql_rows=1k"),
        ('kind = "tokens", value = 5, agent = "x=y"', 'tokens@"x=y"=5'),
        ('kind = "tokens", value = 5, scope = "agent", name = "x"', "agent.x.tokens=5"),
        ('kind = "cost", value = 1, on_unpriced = "warn", admission = "after"', "cost=1usd:admission=after:unpriced=warn"),
    ],
)
def test_a_table_says_what_a_constructor_says(read, table, meant):
    (limit,) = read(f"limits = [{{{table}}}]").limits
    assert limit.limit == parse_limit(meant) == parse_limit(limit.spec)


@pytest.mark.parametrize(
    ("text", "ending"), [("", "toml"), ("", "yaml"), ("# nothing\n", "toml"), ("limits:\n", "yaml"), ("\ufeffname = 'x'", "toml")]
)
def test_a_file_may_say_nothing(read, text, ending):
    assert read(text, ending).limits == ()


@pytest.mark.parametrize("text", ["name: 2026-11-21", "name: '5'", 'name: "5"'])
def test_what_looks_like_text_in_yaml_is_text(read, text):
    assert read(text, "yaml").name in ("2026-11-21", "5")


# -- what is wrong with it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limts = []", "policy.toml: 'limts' is no key of a policy file, did you mean 'limits'; the keys are limits, name, tags, prices"),
        ("limits = 5", "policy.toml: limits is 5, which is no list"),
        ('limits = "tokens=5"', "which is no list: write limits = "),
        ("[limits]\ntokens = 5", "which is no list"),
        ("limits = [5]", "policy.toml: limits[0] is 5: write text such as"),
        ('limits = ["tokns=5"]', "policy.toml limits[0]: limit 'tokns=5': kind 'tokns' is unknown, did you mean 'tokens'"),
        ('limits = [{kind = "tokens"}]', "policy.toml limits[0]: the limit has no value"),
        ("limits = [{value = 5}]", "the limit has no kind"),
        (
            'limits = [{kind = "tokens", value = 5, wran_at = 0.5}]',
            "'wran_at' is no key of a limit, did you mean 'warn_at'; the keys are kind",
        ),
        ('limits = [{kind = "tokns", value = 5}]', "kind 'tokns' is unknown, did you mean 'tokens'"),
        ('limits = [{kind = "tokens=9:warn", value = 5}]', "kind='tokens=9:warn': a value goes with a limit, and here stands a kind alone"),
        ("limits = [{kind = 5, value = 5}]", "kind=5 is no kind of limit; the kinds are tokens"),
        (
            'limits = [{kind = "session.tokens", value = 5}]',
            "kind='session.tokens' has the scope in it; write scope = \"session\" beside it",
        ),
        ('limits = [{kind = "tokens", value = -5}]', "value=-5 must be a whole number from 0"),
        ('limits = [{kind = "tokens", value = 1.5}]', "value=1.5 must be a whole number"),
        ('limits = [{kind = "tokens", value = true}]', "value=True must be a whole number"),
        ('limits = [{kind = "agents", value = 0}]', "agents must be at least 1"),
        ('limits = [{kind = "cost", value = "2usd:on=stop"}]', "has an option behind it; write it as a key of its own"),
        ('limits = [{kind = "cost", value = []}]', "value=[] must be an amount of USD"),
        ('limits = [{kind = "time", value = nan}]', "policy.toml: limits[0].value is nan, which is no amount"),
        ('limits = [{kind = "time", value = 1e300}]', "value=1e+300 must be a number of seconds"),
        ('limits = [{kind = "time", value = 5, agent = "x"}]', "@ sums what all agents of a name spend, which time cannot be"),
        ('limits = [{kind = "tokens", value = 5, tool = "x"}]', "tool='x' goes with kind = \"tool_calls\", not with 'tokens'"),
        ('limits = [{kind = "tokens", value = 5, scope = "moon"}]', "scope='moon' is unknown: give one of 'tenant', 'session'"),
        ('limits = [{kind = "tokens", value = 5, name = "x"}]', "name='x' names a handoff, block or agent: give scope="),
        ('limits = [{kind = "tokens", value = 5, warn_at = 2}]', "warn_at=2 must be a share of the limit"),
        ("name = 5", "policy.toml: name=5 is not text"),
        ('name = ""', "policy.toml: name='' is empty"),
        ('name = "\\u001b[31m"', "has a control character"),
        ("tags = 5", "policy.toml: tags=5 must be a dict of short texts"),
        ("tags = {Team = 'x'}", "tags key 'Team' must be lower-case"),
        ("tags = {team = 5}", "tags.team=5 is not text"),
        ("prices = 5", "policy.toml: prices is int"),
        ("prices = {x = {input = 1}}", "prices['x'] has no 'output'"),
        ("prices = {x = {input = nan, output = 1}}", "prices.x.input is nan"),
        ("prices = {x = {input = -1, output = 1}}", "is -1, but a price is between 0"),
        ('enforcement = "off"', "policy.toml: enforcement='off' is unknown: give one of 'enforce', 'observe'"),
        ('admission = "tight"', "policy.toml: admission='tight' is unknown: give one of 'estimate', 'strict', 'after'"),
        ("warn_at = 2", "policy.toml: warn_at=2 must be a share of the limit"),
        ("name = 2026-11-21", "name is '2026-11-21', a date or time: write it as text in quotes"),
        (f"name = 1{'0' * 30}", "name is too large a number"),
        ("name = [", "policy.toml is no TOML that can be read: "),
        ("name = 1\nname = 2\n", "policy.toml is no TOML that can be read: Cannot overwrite a value (at line 2"),
    ],
)
def test_the_file_the_key_the_value_and_the_way_out_are_named(read, text, words):
    assert words in flaw(read, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nname: b", "policy.yaml:2 has the key 'name' twice: keep one."),
        ("? [a]\n: b", "policy.yaml:1 has a key that is no text"),
        ("name: !!float ''", "policy.yaml:1 holds a 'float' that is no plain value"),
        ("- tokens=5", "holds ['tokens=5'], not keys such as limits"),
        ("5", "holds 5, not keys such as limits"),
        ("a: 1\n---\nb: 2", "no YAML that can be read: expected a single document in the stream but found another document (at line 2"),
        ("name: [", "no YAML that can be read: while parsing a flow node expected the node content"),
        ("a: &a [1]\nname: *a", "policy.yaml:2 has the alias *a: write the value itself"),
        ("name: !!python/object/apply:os.system ['exit 1']", "holds a 'python/object/apply:os.system' that is no plain value"),
        ("name: !!python/name:os.system x", "that is no plain value"),
        ("name: !!set {a, b}", "holds a 'set' that is no plain value"),
        ("name: !!int x", "holds a 'int' that is no plain value"),
        ("name: !!bool x", "holds a 'bool' that is no plain value"),
        ("name: !!float [1]", "that is no plain value"),
        ("limits: [{kind: cost, value: .nan}]", "limits[0].value is nan"),
        ("name: 5", "name=5 is not text"),
        ("limits: [tokns=5]", "policy.yaml:1: limit 'tokns=5'"),
    ],
)
def test_yaml_that_is_no_policy_is_named(read, text, words):
    assert words in flaw(read, text, "yaml")


def test_yaml_without_its_library_says_what_to_install(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ravi-otel\[yaml\]'"):
        read(YAML, "yaml")
    assert read(TOML).name == "nightly"


# -- what is no such file at all ------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"missing\.toml cannot be read: No such file or directory\. Name a file"):
        effective(environ={}, file=tmp_path / "missing.toml")


@pytest.mark.parametrize("name", ["policy.json", "policy", "policy.toml.bak"])
def test_another_ending_is_refused(tmp_path, name):
    with pytest.raises(ConfigurationError, match=r"has the ending .*: name it \.toml, \.yaml or \.yml\."):
        effective(environ={}, file=tmp_path / name)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path, make):
    make(tmp_path / "policy.toml")
    with pytest.raises(ConfigurationError, match=r"cannot be read: it is no regular file"):
        effective(environ={}, file=tmp_path / "policy.toml")


def test_a_name_with_control_characters_cannot_move_a_cursor(tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        effective(environ={}, file=tmp_path / "\x1b[31m\0.toml")
    assert "\\x1b[31m\\x00.toml' cannot be read" in str(caught.value)


@pytest.mark.parametrize("raw", [bytes(range(256)), "name = 'x'".encode("utf-16"), b"\xff"])
def test_what_is_no_text_is_said_to_be_none(read, raw):
    assert "is not UTF-8 text (at byte " in flaw(read, raw)
    assert "is not UTF-8 text (at byte " in flaw(read, raw, "yaml")


HOSTILE = {
    "nested.toml": "a = " + "[\n" * 300_000,
    "nested in a line.toml": "a = " + "[" * 5_000,
    "dotted.toml": "\n".join(".".join(["a"] * 4_000) + f".b{i} = 1" for i in range(130)),
    "less dotted.toml": "\n".join(".".join(["a"] * 250) + f".b{i} = 1" for i in range(2_000)),
    "tables.toml": "\n".join(f'[[limits]]\nkind = "tokens"\nvalue = {i}' for i in range(25_000)),
    "limits.toml": "limits = [\n" + '"tokens=5",\n' * 1_001 + "]",
    "keys.toml": "\n".join(f"k{i} = 1" for i in range(90_000)),
    "digits.toml": "limits = [" + "9" * 8_000 + "]",
    "hex.toml": "limits = [0x" + "f" * 8_000 + "]",
    "text.toml": 'name = """' + ("x" * 8_000 + "\n") * 120 + '"""',
    "zeros.toml": b"\0" * 1_000,
    "large.toml": b"#" * (MOST_BYTES + 1),
    "line.toml": "#" * (MOST_LINE + 1),
    "nested.yaml": "[\n" * 400_000,
    "nested in a line.yaml": "[" * 8_000,
    "dashes.yaml": "- " * 4_000,
    "questions.yaml": "? " * 4_000,
    "lol.yaml": "a: &a [x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n",
    "sexagesimal.yaml": "name: 1" + ":1" * 4_000,
    "digits.yaml": "name: " + "9" * 4_090,
    "values.yaml": "limits:\n" + "- tokens=5\n" * 80_000,
    "lines.yaml": "name: |\n" + "\n" * 300_000,
    "tags.yaml": "".join(f"%TAG !e{i}! tag:e:\n" for i in range(40_000)) + "--- 1",
    "documents.yaml": "--- 1\n" * 150_000,
    "zeros.yaml": b"\0" * 1_000,
    "surrogate.yaml": 'name: "\\ud800"',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_sentence_soon(read, name):
    began = time.thread_time()
    flaw(read, HOSTILE[name], name.rpartition(".")[2])
    assert time.thread_time() - began < LONGEST_S


words = st.sampled_from(
    ["limits", "name", "tags", "prices", "kind", "value", "tokens", "cost", "team", "tool", "agent", "scope", "warn_at"]
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | words | st.just("tokens=5"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def toml_of(value):
    """Write a value as TOML, which the standard library only reads."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_of(str(key))} = {toml_of(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08x}" for char in value) + '"'
    return {True: "true", False: "false"}.get(value, "nan") if isinstance(value, bool) or value is None else repr(value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(["limits", "name", "tags", "prices", "enforcement", "admission"]), plain, max_size=4))
def test_no_shape_raises_anything_but_our_own_error(read, content):
    text = "\n".join(f"{key} = {toml_of(value)}" for key, value in content.items())
    try:
        tomllib.loads(text)
    except ValueError:
        return  # half a character
    assert "\n" not in said(read, text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), st.sampled_from(["toml", "yaml"]))
def test_no_bytes_raise_anything_but_our_own_error(read, raw, ending):
    assert "\n" not in said(read, raw, ending)
