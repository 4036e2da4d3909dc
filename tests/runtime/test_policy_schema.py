"""The schema that editors know says the same as the reader."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import subprocess
from dataclasses import fields
from pathlib import Path

import fastjsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel._runtime.config import effective
from ravi_otel._runtime.policy_file import SCHEMA, Document, read_document
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import Kind, Limit, LimitOptions
from ravi_otel.policy._limits import OPTIONS, WORDED, Outcome

ROOT = Path(__file__).parents[2]
MOST = int(os.environ.get("RAVI_LONG", "400"))
DOCUMENT = json.loads(SCHEMA.read_bytes())
VALIDATE = fastjsonschema.compile(DOCUMENT, use_default=False)

BEYOND = [
    # what a JSON schema cannot say, by what the reader says
    r"concerns limits of tokens and cost|keeps some back for a last call|is a pattern, and none are known|says when a window begins",
    r"goes with what is counted up|goes with what a call of a model uses",  # which kinds begin anew
    r"is there twice",  # two limits for the same thing, an option given twice
    r"twice, as case does not matter",  # model names
    r"is a fraction of what can be counted|is too large|is too fine|is not a number",  # a unit multiplied out
    r"=\d+\.0 must be a whole number",  # 1.0 is a whole number to JSON
    r"has another unit than usd|unit .* is unknown here",  # which units go with the kind
    r"agents must be at least 1",
    r"@ sums what all agents of a name spend",
    r"the name of .* (is|has)|the name in .* is",  # names, unquoted, in words
    r"names a handoff, block or agent|takes no name|is no scope",
    r"goes with kind|goes with a limit of tokens",
    r"says itself where it belongs",
    r"is built in, so write it without charge",
    r"(limits|agents\..+)\[\d+\]: (limit|value=).*",  # a text as a table's value
    r"must be a number of seconds|must be an amount of USD",  # the largest of them
    r"must be a share of the limit",  # in words
    r"is no time zone of this machine",
    r"prices\[.*\] is .*, (which is no number|but a price is)",  # a price as text
    r"of the formula|count=",
]


def refused(document):
    """Give what the reader says, nothing when it can use it."""
    try:
        read_document(document)
    except ConfigurationError as error:
        return str(error)
    return ""


def fits(document):
    try:
        VALIDATE(document.content)
    except fastjsonschema.JsonSchemaValueException:
        return False
    return True


# -- generated documents, nearly all of them nearly right -----------------------------------------------------------


def nearly(right, *wrong):
    """Give what is right, and now and then what is not."""
    return st.one_of(*[right] * 24, st.sampled_from([*wrong, 5, -1, 1.5, 2.0, True, "", "x y", [], {}, None]))


def mostly(usual, others):
    """Give what is usual as often as all the rest together."""
    return st.sampled_from(usual) | others


def table(required=None, **optional):
    return st.fixed_dictionaries(required or {}, optional=optional)


kinds = st.sampled_from([*Kind, "token", "turn", "tool.search", "tool_calls.a-b", "charge.sql_rows", 'charge."sql rows"'])
names = st.sampled_from(["researcher", "a b", "délai", "x.y", "*", "tokens", "a=b"])
written = st.sampled_from(["researcher", '"a b"', "a.b", "délai", '"x=\\"y\\""', " w ", "tokens", '"tokens"'])
amounts = st.sampled_from(["5", "500k", "2.50usd", "$2", "90s", "1M", "1.5h", "5.", ".5", " 7 ", "250ms", "2 USD", "1e3", "-1", "٣", "5x"])
options = st.sampled_from(
    ["", ":warn=0.5", ":on=stop", ": on = deny_tool", ":warn=2", ":on=nothing", ":per=day", ":per=15m", ":per=day:tz=UTC", ":by=user",
     ":by=tag.a", ":by=me", ":admission=strict",
     ":unpriced=warn", ":unbounded=window", ":suspend=allow", ":store=open", ":wran=1", ":warn=.5:on=final", ":on=stop:on=stop", ":"]
)  # fmt: skip
scopes = st.sampled_from(["", "", "", "session.", "tenant.", "run.", "agent.", "process.", "moon.", "session . "]) | st.builds(
    "{}.{}.".format, st.sampled_from(["agent", "handoff", "block", "session"]), written
)
agents = st.sampled_from(["", "", "", "@researcher", '@"a b"', "@a.b", " @ x", "@", "@a@b"])
lines = st.builds(
    lambda *parts: "".join(parts),
    mostly([""], scopes), mostly(["tokens", "cost", "tool.search"], kinds), mostly([""], agents), st.sampled_from(["=", "=", " = ", ""]),
    mostly(["5"], amounts), mostly([""], options),
)  # fmt: skip
limit_tables = table(
    {"kind": nearly(kinds, "tokns", "session.tokens", "tokens=5"), "value": nearly(st.integers(0, 10**6) | amounts, 1e300, 2**60)},
    tool=nearly(names),
    agent=nearly(names),
    scope=nearly(st.sampled_from(["run", "session", "agent"]), "moon"),
    name=nearly(names),
    warn_at=nearly(st.sampled_from([0.5, 1, 0.001])),
    on_exceed=nearly(st.sampled_from(list(map(str, Outcome)))),
    admission=nearly(st.sampled_from(["strict", "after"])),
    per=nearly(st.sampled_from(["day", "15m"]), "fortnight"),
    tz=nearly(st.just("UTC"), "Moon/Sea"),
    by=nearly(st.sampled_from(["user", "model", "tag.team"]), "me"),
    suspend=nearly(st.just("allow")),
)
limit_lists = st.lists(nearly(lines | limit_tables), max_size=2)
agent_tables = table(
    limits=nearly(limit_lists), admission=nearly(st.just("after")), warn_at=nearly(st.just(0.5)), on_exceed=st.just("stop")
)
prices = table(
    input=nearly(st.just(2.5)), output=nearly(st.just("10"), "lots"), audio_hour=st.just(1), search=st.just(0), inputs=st.just(1)
)
PART = {
    "limits": nearly(limit_lists),
    "agents": nearly(st.dictionaries(names, nearly(agent_tables | limit_lists), max_size=2)),
    "tools": nearly(st.dictionaries(names, nearly(st.integers(0, 9) | st.sampled_from(["5", "1k", "5:on=stop", "5s"])), max_size=2)),
    "name": nearly(names),
    "tags": nearly(st.dictionaries(st.sampled_from(["team", "a.b", "Team", ""]), nearly(names), max_size=2)),
    "prices": nearly(st.dictionaries(st.sampled_from(["gpt-x", "GPT-X", "a/*", "a*b", ""]), nearly(prices), max_size=2)),
    "enforcement": nearly(st.sampled_from(["enforce", "observe"])),
    "admission": nearly(st.sampled_from(["estimate", "strict", "after"])),
    "warn_at": nearly(st.just(0.5), 0, 1.0001),
}
KEYS = {**PART, "profiles": nearly(st.dictionaries(names, nearly(table(None, **PART)), max_size=1)), "limts": st.just([])}
documents = st.one_of(*(table({key: of}) for key, of in KEYS.items())) | table(None, **KEYS)


@settings(max_examples=MOST, deadline=None)
@given(documents)
def test_the_schema_and_the_reader_take_the_same_documents(content):
    before = copy.deepcopy(content)
    document = Document("policy.toml", content)
    sentence = refused(document)
    taken = fits(document)
    assert content == before
    assert "\n" not in sentence
    if not sentence:
        assert taken, "the schema refuses what can be read"
    elif taken:
        assert any(re.search(pattern, sentence) for pattern in BEYOND), sentence


# Each of them alone, so that none hides behind another: one key of one document.
@settings(max_examples=MOST, deadline=None)
@given(st.sampled_from(["limits", "agents"]), lines)
def test_the_schema_and_the_reader_take_the_same_limits_in_words(key, line):
    document = Document("policy.toml", {"limits": [line]} if key == "limits" else {"agents": {"x": [line]}})
    sentence = refused(document)
    if not sentence:
        assert fits(document)
    elif fits(document):
        assert any(re.search(pattern, sentence) for pattern in BEYOND), sentence


@pytest.mark.parametrize(
    "content",
    [
        {"limits": ["tokns=5"]},
        {"limits": ["tokens"]},
        {"limits": ["tokens=5:wran=1"]},
        {"limits": ["tokens=lots"]},
        {"limits": [{"kind": "tokens", "value": -5}]},
        {"limits": [{"kind": "tokens", "value": 1.5}]},
        {"limits": [{"kind": "tokens", "value": 5, "on_exceed": "nothing"}]},
        {"agents": {"researcher": {"limit": []}}},
        {"tools": {"delete_*": 5}},
        {"tools": {"search": -1}},
        {"profiles": {"ci": {"profiles": {}}}},
        {"prices": {"gpt-x": {"input": 1}}},
        {"tags": {"Team": "x"}},
        {"warn_at": 2},
    ],
)
def test_an_editor_sees_what_the_reader_would_refuse(content):
    document = Document("policy.toml", content)
    assert (fits(document), bool(refused(document))) == (False, True)


# -- the file itself ------------------------------------------------------------------------------------------------


def test_the_schema_is_what_the_code_knows():
    spec = importlib.util.spec_from_file_location("policy_schema", Path(__file__).with_name("policy_schema.py"))
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert SCHEMA.read_text(encoding="utf-8") == made.text(), "run `make names`"


def test_it_names_its_draft_and_every_key_says_what_it_is():
    assert DOCUMENT["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert [key for key, described in DOCUMENT["properties"].items() if not described.get("description")] == []


def test_it_is_in_the_tree_the_wheel_is_made_of():
    ignored = subprocess.run(["git", "check-ignore", str(SCHEMA)], cwd=ROOT, capture_output=True, check=False)
    assert ROOT / "ravi_otel" in SCHEMA.parents
    assert ignored.returncode != 0, "what git ignores is not built"


def test_every_option_of_a_limit_is_in_one_table_that_all_share():
    assert set(OPTIONS) == {*LimitOptions.__annotations__, "count"}
    assert [each.field for each in OPTIONS.values()] == [each.name for each in fields(Limit) if "option" in each.metadata]
    assert set(DOCUMENT["$defs"]["limit"]["properties"]) == {"kind", "value", "tool", "agent", *OPTIONS}
    assert {each.keyword for each in OPTIONS.values()} - {each.keyword for each in WORDED.values()} == {"scope", "name"}


def test_a_file_that_names_its_schema_for_an_editor_is_read(tmp_path):
    (tmp_path / "policy.yaml").write_text("# yaml-language-server: $schema=policy.schema.json\nlimits: [tokens=5]\n")
    (limit,) = effective(environ={}, file=tmp_path / "policy.yaml").limits
    assert limit.spec == "tokens=5"
