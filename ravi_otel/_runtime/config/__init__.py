"""Know which limits count: in code, on the command line, in the environment and in a policy file, in this order.

A policy file is TOML, or YAML with the extra `yaml`::

    name = "nightly"
    enforcement = "enforce"                       # or "observe"
    limits = ["tokens=500k", "cost=2.50usd:warn=0.5", "session.requests=500"]

    [agents]
    researcher = ["tokens=50k", "turns=20"]       # of every agent of that name

    [tools]
    search = 5                                    # tool.search=5

    [tags]
    team = "search"

    [prices.my-model]                             # USD per million tokens
    input = 2.5
    output = 10

    [gate]                                        # of `Rules.from_file`, which makes a supervisor of it
    default = "escalate"
    rules = [{ rule = "allow", tool = "search" }]

    [profiles.ci]                                 # chosen by name; goes before the rest of the file
    limits = ["cost=0.50usd"]

A limit may be a table too, with the keywords of the constructors: `kind`, `value`, `tool`, `agent`, `scope`, `name`,
`warn_at`, `on_exceed` and so on. `policy.schema.json` beside this module says all of it to an editor.
"""

from ravi_otel._runtime.config.effective import Policy, effective, read_tags, service_in, with_ledger
from ravi_otel._runtime.config.file import SCHEMA, GateSection, Sourced, load_document, read_document

__all__ = [
    "SCHEMA",
    "GateSection",
    "Policy",
    "Sourced",
    "effective",
    "load_document",
    "read_document",
    "read_tags",
    "service_in",
    "with_ledger",
]
