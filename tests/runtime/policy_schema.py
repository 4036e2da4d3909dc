"""Write the JSON schema of policy files from what the code knows: `python tests/runtime/policy_schema.py`."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any, get_args

from ravi_otel._pricing.book import LINES, PER_MILLION, REQUIRED, UNITS
from ravi_otel._pricing.rates import DEAREST_USD
from ravi_otel._runtime.policy_file import AGENT_KEYS, FILE_KEYS, GATE_KEYS, GENERAL, LIMIT_KEYS, MODES, MOST_LIMITS, PROFILE_KEYS, SCHEMA
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._grammar import MAX_SPEC
from ravi_otel.policy._limits import CLOCKS, DOWNWARDS, OPTIONS, PREFIXES, WORDED, Kind, Option
from ravi_otel.supervisor.approval._request import MOST_APPROVERS
from ravi_otel.supervisor.rules._kinds import RULE_KINDS, DefaultDecision

PART = r'(?:"(?:[^"\\]|\\[\s\S])*"|[^".@=:\s][^.@=:]*)'
DOT = r"\s*\.\s*"
NAME = rf"{PART}(?:{DOT}{PART})*"
NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
CONTROL = r"\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff"
EXAMPLES = ["tokens=500k", "cost=2.50usd:warn=0.5", "time=90s", "agent.researcher.turns=20", "tool.search=5", "session.requests=500"]
SAID = {
    "limits": "What may be used, by the whole program or where a limit says.",
    "agents": "Limits of every agent of a name: a list, or a table with `limits`.",
    "tools": "How often each tool may be started: a number, or text with options behind it, such as 5:on=stop.",
    "gate": "The rules of a supervisor, made by Rules.from_file: what may be done, and what a person is asked about.",
    "profiles": "Changes to this file under a name, chosen with --profile, RAVI_PROFILE or instrument(profile=...).",
    "name": "What to call the run.",
    "tags": "Short texts on every span of the run and on the cost metric.",
    "prices": "USD per million tokens, by model or provider/model; a * at the end of a name stands for any rest.",
    "enforcement": "observe refuses nothing, and tells what would have been refused.",
    "admission": "How a call's spend is held before it is known, where a limit does not say.",
    "warn_at": "The share of a limit at which it is told to be near, where a limit does not say.",
}


def schema() -> dict[str, Any]:
    """Give the whole schema."""
    keys = {key: {"description": SAID[key], **described} for key, described in _keys().items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A policy file of ravi-otel",
        "description": "Which limits count, by file and by profile. `ravi-otel limits --policy FILE` shows what comes of it.",
        "type": "object",
        "properties": {key: keys[key] for key in FILE_KEYS},
        "additionalProperties": False,
        "$defs": {
            "profile": {"type": "object", "properties": {key: keys[key] for key in PROFILE_KEYS}, "additionalProperties": False},
            "agent": {"anyOf": [_ref("limits"), _agent()]},
            "limits": {"type": "array", "maxItems": MOST_LIMITS, "items": _ref("entry")},
            "entry": {"anyOf": [_ref("line"), _ref("limit")]},
            "line": {"type": "string", "maxLength": MAX_SPEC, "pattern": f"^{_path()}\\s*={_value()}{_options()}$", "examples": EXAMPLES},
            "limit": _limit(),
            "name": {
                "type": "string",
                "minLength": 1,
                "maxLength": checks.MAX_NAME,
                "pattern": rf"^[^{CONTROL}]*[^\s{CONTROL}][^{CONTROL}]*$",
            },
            "share": {"type": "number", "minimum": checks.LEAST_SHARE, "maximum": 1},
            "price": _price(),
            "names": {"anyOf": [_ref("name"), {"type": "array", "minItems": 1, "items": _ref("name")}]},
            "rule": {"oneOf": [_rule(word) for word in RULE_KINDS]},
        },
    }


def _keys() -> dict[str, dict[str, Any]]:
    by_name = {"type": ["object", "null"], "propertyNames": _ref("name")}
    return {
        "limits": {"type": ["array", "null"], "maxItems": MOST_LIMITS, "items": _ref("entry")},
        "agents": by_name | {"additionalProperties": _ref("agent")},
        "tools": by_name
        | {
            "propertyNames": {"allOf": [_ref("name"), {"pattern": r"^[^*]*$"}]},
            "additionalProperties": {"anyOf": [_count(), {"type": "string", "pattern": f"^{_count_text()}{_options()}$"}]},
        },
        "name": _or_none(_ref("name")),
        "tags": {
            "type": ["object", "null"],
            "maxProperties": checks.MOST_TAGS,
            "propertyNames": {"pattern": f"^{checks.TAG.pattern}$"},
            "additionalProperties": _ref("name"),
        },
        "prices": {
            "type": ["object", "null"],
            "propertyNames": {"pattern": r"^[^*]*[\s\S]$"},
            "additionalProperties": _ref("price"),
        },
        "enforcement": {"enum": [*MODES, None]},
        **{key: _option(OPTIONS[key]) for key in GENERAL},
        "gate": {"type": ["object", "null"], "properties": _gate(), "additionalProperties": False},
        "profiles": by_name | {"additionalProperties": _ref("profile")},
    }


def _agent() -> dict[str, Any]:
    properties = {"limits": _ref("limits")} | {key: _option(OPTIONS[key]) for key in GENERAL}
    return {"type": "object", "properties": {key: properties[key] for key in AGENT_KEYS}, "additionalProperties": False}


def _limit() -> dict[str, Any]:
    kinds = "|".join(_words())
    own: dict[str, Any] = {
        "kind": {"type": "string", "pattern": rf"^\s*(?:{kinds}|(?:charge|tool|tool_calls?){DOT}{NAME})\s*$", "examples": list(Kind)},
        "value": {"type": ["number", "string"], "minimum": 0, "examples": [500_000, "500k", "2.50usd", "90s"]},
        "tool": _or_none(_ref("name")),
        "agent": _or_none(_ref("name")),
    }
    own |= {keyword: _option(option) for keyword, option in OPTIONS.items()}
    counts = "|".join(
        word for kind, word in ((kind, word) for kind in Kind for word in _spellings(kind)) if kind not in (Kind.COST, *CLOCKS)
    )
    return {
        "type": "object",
        "properties": {key: own[key] for key in LIMIT_KEYS},
        "required": ["kind", "value"],
        "additionalProperties": False,
        "if": {"properties": {"kind": {"pattern": rf"^(?:{counts}|.*\..*)$"}}},
        "then": {"properties": {"value": {"type": ["integer", "string"], "maximum": checks.MAX_COUNT}}},
    }


def _option(option: Option) -> dict[str, Any]:
    """Describe an option as a policy file states it."""
    if option.choices:
        return {"enum": [*option.choices, *([None] if option.default is None else [])]}
    if option.number:
        described: dict[str, Any] = _ref("share")
    elif option.pattern:
        described = {"type": "string", "pattern": f"^(?:{option.pattern})$"}
    else:
        described = _ref("name")
    return _or_none(described) if option.default is None else described


def _price() -> dict[str, Any]:
    amount = {"type": ["number", "string"], "minimum": 0, "maximum": float(DEAREST_USD)}
    instead = [line for line in LINES if UNITS[line][0] != PER_MILLION]
    without_tokens = {
        "anyOf": [{"required": ["characters"]}, {"required": ["audio_hour"]}],
        "propertyNames": {"enum": instead},
    }
    return {
        "type": "object",
        "properties": {line: {"description": UNITS[line][0], **amount} for line in LINES},
        "additionalProperties": False,
        "anyOf": [{"required": list(REQUIRED)}, without_tokens],
    }


def _gate() -> dict[str, Any]:
    rules = {"type": ["array", "null"], "maxItems": MOST_LIMITS, "items": _ref("rule")}
    people = {"type": "array", "minItems": 1, "maxItems": MOST_APPROVERS, "items": _ref("name")}
    by_tool = {"type": "object", "propertyNames": _ref("name"), "additionalProperties": people}
    own = {
        "default": {"enum": [*get_args(DefaultDecision), None]},
        "rules": rules,
        "approvers": {"anyOf": [{"type": "null"}, people, by_tool]},
        "requester_may_approve": {"type": ["boolean", "null"]},
    }
    return {key: own[key] for key in GATE_KEYS}


def _rule(word: str) -> dict[str, Any]:
    kind = RULE_KINDS[word]
    number = {"type": "number"}
    own: dict[str, Any] = {
        **dict.fromkeys(("tool", "first", "after"), _ref("names")),
        **dict.fromkeys(("reason", "exhausted_reason"), _or_none(_ref("name"))),
        "field": _ref("name"),
        "same": {"anyOf": [_ref("names"), {"type": "array", "maxItems": 0}]},
        "values": {"type": "array", "minItems": 1},
        "otherwise": {"enum": list(getattr(kind, "choices", ()))},
        "least": number,
        "most": _count() if word == "most_calls" else number,
    }
    named = dataclasses.fields(kind)
    return {
        "type": "object",
        "description": inspect.cleandoc(kind.__doc__ or "").partition("\n")[0],
        "properties": {"rule": {"const": word}} | {each.name: own.get(each.name, {}) for each in named},
        "required": ["rule", *(each.name for each in named if each.default is dataclasses.MISSING)],
        "additionalProperties": False,
    }


# -- a limit in words ---------------------------------------------------------------------------------------------


def _spellings(kind: Kind) -> list[str]:
    return [str(kind), *([kind.removesuffix("s")] if kind.endswith("s") else [])]


def _words() -> list[str]:
    return [word for kind in Kind for word in _spellings(kind)]


def _path() -> str:
    named = [scope for scope in PREFIXES if scope in DOWNWARDS]
    plain = [scope for scope in PREFIXES if scope not in named]
    scope = rf"(?:(?:{'|'.join(plain)}){DOT}|(?:{'|'.join(named)}){DOT}(?:{PART}{DOT})*)?"
    kind = rf"(?:(?:charge|tool|tool_calls?){DOT}{NAME}|(?:{'|'.join(_words())}))"
    return rf"\s*{scope}{kind}(?:\s*@\s*{NAME})?"


def _value() -> str:
    return rf"\s*\$?\s*{NUMBER}\s*(?:[kKM]|ms|[smh]|[uU][sS][dD])?\s*"


def _count_text() -> str:
    return rf"\s*{NUMBER}\s*[kKM]?\s*"


def _options() -> str:
    told = [rf"{word}\s*=\s*(?:{NUMBER if each.number else each.pattern or '|'.join(each.choices)})" for word, each in WORDED.items()]
    return rf"(?:\s*:\s*(?:{'|'.join(told)})\s*)*"


# -- pieces -------------------------------------------------------------------------------------------------------


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _or_none(described: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [described, {"type": "null"}]}


def _count() -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "maximum": checks.MAX_COUNT}


def text() -> str:
    """Give the schema as the file holds it."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text(), encoding="utf-8")
