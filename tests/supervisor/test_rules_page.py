"""What docs/rules.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ravi_otel.supervisor import DecisionKind, Rules, RunState, StatedCall, ToolSignature, read_action
from ravi_otel.supervisor._arguments import BadArguments
from ravi_otel.supervisor.rules._kinds import RULE_KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")


def issue_refund(user_id: int, amount_usd: float, reason: str):
    """Give money back."""


def block(language):
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def rules():
    made = {}
    exec(block("python"), made)
    return made["rules"]


def test_the_rules_in_code_and_in_the_file_are_the_same(rules, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(block("toml"), encoding="utf-8")
    assert Rules.from_file(path).version == rules.version


def decisions(rules, user_id, amount, reason):
    """Follow the corrections of a call, and give each decision as the page writes it."""
    state = RunState([StatedCall("get_refund_context", {"user_id": 42}, "ok", {"name": "x"})])
    args = {"user_id": user_id, "amount_usd": amount} | ({"reason": "late"} if reason else {})
    action, found = {"kind": "tool", "name": "issue_refund", "args": args}, []
    while not found or found[-1].kind is DecisionKind.REVISE:
        action = found[-1].revised_action if found else action
        found.append(rules.review(action, state))
    return [(each.kind.value, each.reason) for each in found], action["args"]["amount_usd"]


def test_every_call_in_the_table_is_decided_as_the_page_says(rules):
    rows = re.findall(r"^\| (.+?) \| ((?:approve|revise|block|escalate) `.+?) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for call, said in rows:
        amount = re.match(r"\"?(-?[\d,]+)", call)
        number = float(amount[1].replace(",", "")) if amount else 1.0
        found, _ = decisions(
            rules, 43 if "43" in call else 42, amount[1] if call.startswith('"') else number, "without a reason" not in call
        )
        told = [re.match(r"(\w+)(?: `(\w+)`)?", part.strip()).groups() for part in said.split(", then")]
        assert [kind for kind, _ in found] == [kind for kind, _ in told], call
        assert all(reason == want for (_, reason), (_, want) in zip(found, told, strict=True) if want), call


def test_the_cap_lowers_to_what_the_page_says(rules):
    assert decisions(rules, 42, 5_000.0, reason=True)[1] == 2_000.0


def test_text_as_an_amount_does_not_even_reach_the_rules():
    with pytest.raises(BadArguments):
        ToolSignature.of(issue_refund).read({"user_id": 42, "amount_usd": "300", "reason": "late"})


def test_what_may_be_left_out_is_read_without_it(rules):
    raw = {"kind": "tool", "name": "issue_refund", "args": {"user_id": 42, "amount_usd": 300}}
    read = read_action(raw, {"issue_refund": ToolSignature.of(issue_refund)}, may_lack={"issue_refund": rules.may_lack("issue_refund")})
    assert rules.review(read, RunState()).kind is DecisionKind.BLOCK


def test_every_rule_is_in_the_table_with_its_keys():
    rows = dict(re.findall(r"^\| `\w+`, `(\w+)` \|(.*?)\|", PAGE, re.MULTILINE))
    assert set(rows) == set(RULE_KINDS)
    for word, keys in rows.items():
        own = set(RULE_KINDS[word].__annotations__) - {"reason", "word"} | ({"field", "values"} if word.endswith("_values") else set())
        told = set(re.findall(r"\b([a-z_]+)\b(?=[,=`])", keys))
        assert told == own, word
