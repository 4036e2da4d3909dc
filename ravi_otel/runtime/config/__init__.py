"""Know which limits count: in code, on the command line, in the environment and in a policy file, in this order.

A policy file is TOML, or YAML with the extra `yaml`::

    name = "nightly"
    enforcement = "enforce"                       # or "observe"
    limits = ["tokens=500k", "cost=2.50usd:warn=0.5", "agent.researcher.turns=20"]

    [tags]
    team = "search"

    [prices.my-model]                             # USD per million tokens
    input = 2.5
    output = 10

A limit may be a table too, with the keywords of the constructors: `kind`, `value`, `tool`, `agent`, `scope`, `name`,
`warn_at`, `on_exceed` and so on.
"""

from ravi_otel.runtime.config.effective import Policy, check_for_run, effective
from ravi_otel.runtime.config.sources import Sourced
from ravi_otel.runtime.config.tags import check_tags, read_tags

__all__ = ["Policy", "Sourced", "check_for_run", "check_tags", "effective", "read_tags"]
