"""Decide about tool calls by rules, written in code or in a policy file."""

import typing as _typing

from ravi_otel._lazy import lazy_names as _lazy_names

if _typing.TYPE_CHECKING:
    from ravi_otel.supervisor.rules._kinds import (
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
        Rule,
    )
    from ravi_otel.supervisor.rules._rules import Rules

__all__ = [
    "Allow",
    "BlockTools",
    "BlockValues",
    "Cap",
    "CapPerRun",
    "EscalateAbove",
    "FillIn",
    "FinalNeeds",
    "InOrder",
    "MostCalls",
    "NeedsFirst",
    "NotAfter",
    "OnlyValues",
    "ReadOnly",
    "Required",
    "Rule",
    "Rules",
]

__getattr__, __dir__ = _lazy_names(__name__, {"_rules": ("Rules",), "_kinds": [_name for _name in __all__ if _name != "Rules"]})
