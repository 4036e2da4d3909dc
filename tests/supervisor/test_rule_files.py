"""Rules are written in a policy file as in code, and what is wrong in it is said with its place."""

from __future__ import annotations

import dataclasses
import json
import tomllib

import fastjsonschema
import pytest
from click.testing import CliRunner

from ravi_otel._cli.limits import limits
from ravi_otel._runtime.policy_file import SCHEMA, load_document, read_document
from ravi_otel.errors import ConfigurationError
from ravi_otel.supervisor import Rules
from ravi_otel.supervisor.rules import (
    Allow,
    BlockTools,
    BlockValues,
    Cap,
    CapPerRun,
    EscalateAbove,
    FillIn,
    FinalNeeds,
    InOrder,
    MostCalls,
    NeedsFirst,
    NotAfter,
    OnlyValues,
    ReadOnly,
    Required,
)
from ravi_otel.supervisor.rules._kinds import RULE_KINDS

VALIDATE = fastjsonschema.compile(json.loads(SCHEMA.read_bytes()), use_default=False)
EVERY = [
    Cap("refund", "amount", 1_000, otherwise="revise", least=0.01, reason="too_much"),
    CapPerRun(["refund", "credit"], "amount", 2_000, exhausted_reason="nothing_left"),
    EscalateAbove("refund", "amount", 500),
    MostCalls("search", 3, otherwise="escalate"),
    NeedsFirst("refund", ["get_user"], same=["user_id"]),
    InOrder(["get_user", "refund", "send_mail"]),
    NotAfter("refund", "send_mail"),
    FinalNeeds("get_user"),
    Required("refund", "ticket"),
    FillIn("refund", "reason", "Customer request"),
    BlockValues("send_mail", "to", ["evil@example.com"]),
    OnlyValues("refund", "currency", ["EUR", "USD"]),
    Allow("refund"),
    ReadOnly(["get_user", "search"]),
    BlockTools("delete_user"),
]


@pytest.fixture
def written(tmp_path):
    def write(text, name="policy.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def toml(rule):
    """Write a rule as TOML has it; what is None is left out."""
    said = {key: value for key, value in rule.described().items() if value is not None}
    return "[[gate.rules]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in said.items())


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.word)
def test_a_rule_in_a_file_is_the_rule_in_code(rule, written):
    assert Rules.from_file(written(toml(rule))).version == Rules([rule]).version


def test_every_rule_there_is_can_be_written():
    assert {rule.word for rule in EVERY} == set(RULE_KINDS)


def test_a_whole_policy_is_read_with_its_limits_and_its_default(written):
    path = written('limits = ["tokens=50k"]\n[gate]\ndefault = "escalate"\n' + "\n".join(map(toml, EVERY)))
    assert Rules.from_file(path).version == Rules(EVERY, default="escalate").version
    assert [each.spec for each in read_document(load_document(path)).limits] == ["tokens=50k"]


YAML = """
gate:
  default: block
  rules:
    - rule: allow
      tool: [search, get_user]
    - {rule: cap, tool: refund, field: amount, most: 1000, otherwise: escalate}
"""


def test_a_file_in_yaml_says_the_same(written):
    found = Rules.from_file(written(YAML, "policy.yaml"))
    wanted = Rules([Allow(["search", "get_user"]), Cap("refund", "amount", 1_000, otherwise="escalate")], default="block")
    assert found.version == wanted.version


CAP = '[[gate.rules]]\nrule = "cap"\ntool = "refund"\nfield = "amount"\n'
WRONG = [
    ('name = "nightly"', r"has no gate section"),
    ('[gate]\ndefault = "yes"', r"gate\.default='yes' is unknown"),
    ('[gate]\ndefault = ""', r"gate\.default='' is unknown"),
    ("[gate]\ndefault = false", r"gate\.default=False is unknown"),
    ("[gate]\nrules = false", r"gate\.rules is False, which is no list: write rules"),
    ('[gate]\nrules = ["cap"]', r"gate\.rules\[0\] is 'cap', which is no table"),
    ("[gate]\nrulez = []", r"'rulez' is no key of the gate, did you mean 'rules'"),
    ("gate = 3", r"gate is 3, which is no table"),
    ('[[gate.rules]]\ntool = "x"', r"gate\.rules\[0\]: has no rule"),
    ("[[gate.rules]]\nrule = 5", r"gate\.rules\[0\]: has the rule 5"),
    ('[[gate.rules]]\nrule = "caps"\ntool = "x"', r"gate\.rules\[0\]: rule='caps' is unknown: .*did you mean 'cap'\?"),
    (CAP, r"gate\.rules\[0\]: rule cap has no most; its keys are tool, field, most, otherwise, least, reason"),
    (CAP + "most = 5\nmax = 5", r"'max' is no key of rule cap; the keys are tool, field, most, otherwise, least, reason"),
    (CAP + 'most = "5"', r"gate\.rules\[0\]: rule cap: most='5' must be a number"),
    (CAP + "most = true", r"most=True must be a number"),
    (CAP + "most = nan", r"gate\.rules\[0\]\.most is nan"),
    (CAP + "most = 5\n" + CAP + 'most = 5\notherwise = "ask"', r"gate\.rules\[1\]: rule cap: otherwise='ask' is unknown"),
    (CAP + "most = 5\nreason = 3", r"reason=3 is not text"),
    ('[profiles.ci.gate]\ndefault = "block"', r"'gate' is no key of a profile"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_in_a_file_is_said_with_its_place(text, said, written):
    path = written(text)
    with pytest.raises(ConfigurationError, match=said) as caught:
        Rules.from_file(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_wrong_elsewhere_gives_no_rules_either(written):
    with pytest.raises(ConfigurationError, match="tokns"):
        Rules.from_file(written(f'limits = ["tokns=5"]\n{toml(EVERY[0])}'))


def test_rules_in_a_file_that_keep_everybody_from_being_asked_are_refused(written):
    lowers = Cap("refund", "amount", 500, otherwise="revise")
    with pytest.raises(ConfigurationError, match="nobody would ever be asked"):
        Rules.from_file(written(f"{toml(lowers)}\n{toml(EscalateAbove('refund', 'amount', 500))}"))


@pytest.mark.parametrize("text", [text for text, _ in WRONG[1:-1] if "nan" not in text], ids=range(len(WRONG) - 3))
def test_what_the_reader_refuses_the_schema_of_editors_does_not_allow_either(text, written):
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        VALIDATE(tomllib.loads(text))
    shown = CliRunner().invoke(limits, ["--policy", str(written(text))])
    assert isinstance(shown.exception, ConfigurationError)


def test_the_schema_knows_every_rule_and_its_keys():
    variants = json.loads(SCHEMA.read_bytes())["$defs"]["rule"]["oneOf"]
    known = {each["properties"]["rule"]["const"]: set(each["properties"]) - {"rule"} for each in variants}
    assert known == {word: {each.name for each in dataclasses.fields(kind)} for word, kind in RULE_KINDS.items()}
