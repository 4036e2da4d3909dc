"""Say what server and page write to each other; the page's own types are made of these.

Every figure comes as the text to be shown, with the same `~ ≥ ?` as in the terminal, and where a width or an order needs it as a number:
the page computes neither money nor limits.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from ravi_otel._local.answers import RunRow, RunsPage
from ravi_otel._local.live.protocol import LimitState
from ravi_otel._local.wording import clean
from ravi_otel.errors import ConfigurationError
from ravi_otel.supervisor._audit import AuditEntry

_MOST_NAME: Final = 120

Tone = Literal["run", "ok", "near", "refused", "wait", "paused", "error", "unknown"]
"""The shape and colour of a state; the word beside it says the rest."""


class Model(BaseModel):
    """Be one message: nothing in it that nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Session(Model):
    """Tell the page who looks, what may be done, and in which time zone everything is told: the terminal's."""

    user: str | None
    token: str
    read_only: bool
    store: str
    version: str
    zone: str


class Bar(Model):
    """Be one limit. `used`, `held` and `warn` are percents of the bar's width; `kind` is the word that sets it.

    `since` says what it was where it is written, and who set what it is; "" where nobody did.
    """

    kind: str
    title: str
    text: str
    share: str
    tone: Tone
    used: float
    held: float
    warn: float | None
    value: str
    refused: int
    watched: bool
    spec: str | None
    since: str

    @classmethod
    def of(cls, limit: LimitState, title: str | None = None, tone: Tone | None = None) -> Bar:
        """Return a limit as it is drawn; under another title, or in the tone of what became of it, where that is known."""
        used = min(100.0, max(0.0, limit.fullness * 100))
        held = 0.0 if limit.limit <= 0 or limit.is_unknown else min(100.0 - used, max(0.0, limit.held / limit.limit * 100))
        return cls(
            kind=limit.kind,
            title=clean(title or limit.title or limit.kind, _MOST_NAME),
            text=limit.text,
            share=limit.share,
            tone="unknown" if limit.is_unknown else tone or limit.nearness,
            used=round(used, 2),
            held=round(held, 2),
            warn=None if limit.only_watched or limit.warn_at is None else round(limit.warn_at * 100, 1),
            value=limit.value,
            refused=limit.refused,
            watched=limit.only_watched,
            spec=None if limit.spec is None else clean(limit.spec, _MOST_NAME),
            since=limit.set_text,
        )


class Note(Model):
    """Be a line below a row: why its last call, `call`, was refused, or which call waits for a person, to be answered as `ask`.

    `asked_at` and `expires_at` are when that person was asked, and until when there is an answer to give, in Unix seconds.
    """

    tone: Tone
    at: str
    text: str
    ask: str | None = None
    asked_at: float | None = None
    expires_at: float | None = None
    call: str | None = None


class NowRow(Model):
    """Be a process, run, agent or block that is open. `guide` says for each level whether more follows there, its own last."""

    key: str
    parent: str | None
    guide: list[bool]
    kind: str
    name: str
    of: str
    process: str
    scope: str | None
    run: str | None
    tone: Tone
    word: str
    priority: str
    calls: str
    rate: str
    cost: str
    bars: list[Bar]
    more_bars: int
    can: list[str]
    facts: list[str]
    note: Note | None


class Refusal(Model):
    """Be one refused call, in the words of its error; `before` says how often its agent was refused by the same limit until then."""

    at: str
    agent: str
    call: str
    limit: str
    sentence: str
    run: str | None
    run_name: str
    call_id: str | None
    before: str


class Now(Model):
    """Be what is open at one moment, over all processes of the store."""

    says: list[tuple[Tone, str]]
    rows: list[NowRow]
    refusals: list[Refusal]
    refused: str
    waiting: int


class Command(Model):
    """Ask a process for something: one operation on one open scope."""

    process: str
    scope: str
    op: Literal["cancel", "close", "pause", "resume", "reprioritize", "set_limit"]
    kind: str | None = None
    value: str | None = None
    reason: str | None = None


class Budget(Model):
    """Be one limit that programs share in a ledger; `state` is empty, or near, exceeded, draining or closed."""

    id: str
    state: str
    bar: Bar


class Budgets(Model):
    """Be what programs on all machines share: the ledger, None where none is named, and its budgets, the fullest first."""

    where: str | None
    error: str | None
    budgets: list[Budget]
    more: int


class BudgetChange(Model):
    """Give a shared budget another limit; None closes it."""

    id: str
    value: str | None = None


class Tried(Model):
    """Say what a value would do, as it was `typed`: why it is none, whether it is the one there is, or what it would refuse at once."""

    typed: str
    error: str = ""
    is_same: bool = False
    refuses: str = ""

    @classmethod
    def of(cls, limit: LimitState, typed: str) -> Tried:
        """Try a value that was typed on a limit, and change nothing."""
        try:
            value = limit.read_amount(typed)
        except ConfigurationError as error:
            return cls(typed=typed, error=str(error))
        return cls(typed=typed, is_same=value == limit.limit, refuses=limit.refuses_at(value))


class Done(Model):
    """Say in one sentence what was done."""

    said: str


class Field(Model):
    """Be what an argument may be, as its tool's schema says; `says` says it in words, `choices` are JSON."""

    kind: Literal["text", "whole", "number", "flag", "choice", "json"]
    required: bool
    nullable: bool
    choices: list[str]
    least: float | None
    most: float | None
    above: float | None
    below: float | None
    shortest: int | None
    longest: int | None
    about: str
    says: str


class Argument(Model):
    """Be one argument as JSON in ASCII, so that no two different ones look alike; `reads` is how a text with other letters reads.

    `value` None was not asked for, `edited` None is as it was asked, and an empty one was left out. `field` None is not known.
    """

    name: str
    type: str
    field: Field | None = None
    value: str | None
    edited: str | None
    reads: str | None


class Ask(Model):
    """Be one request for a person's approval; `seal` binds an answer to what was shown, `says` is why it cannot be answered.

    `is_over` says that nothing more becomes of it, and `run_name` what its run is called, "" where that is not known here.
    """

    id: str
    tone: Tone
    word: str
    call: str
    tool: str
    agent: str
    run: str | None
    run_name: str = ""
    tenant: str
    user: str
    op_id: str | None
    approvers: str
    reason: str
    risk: str | None
    asked_at: float
    expires_at: float | None
    answered_at: float | None
    fingerprint: str
    seal: str
    arguments: list[Argument]
    comment: str
    says: str
    can: list[str]
    is_over: bool


class Inbox(Model):
    """Be the queue: what waits, oldest first, and what is over, newest first."""

    where: str
    waiting: list[Ask]
    answered: list[Ask]


class Message(Model):
    """Be one message: who said it, and its parts as (kind, text)."""

    role: str
    parts: list[tuple[str, str]]


class SoFar(Model):
    """Be what its run had come to when it was asked: in figures, and the end of what was said to the model that asked for it.

    `captured` None is that this is not told here.
    """

    run: str
    name: str
    says: str
    captured: bool | None
    messages: list[Message]


class Ran(Model):
    """Be the call that ran by an approval: how it ended, and what it gave where that is kept."""

    tone: Tone
    says: str
    call: str | None
    result: str | None


class Asked(Model):
    """Be one request, what became of the same before, its run so far, what ran, and the link by which another may decide it."""

    ask: Ask
    earlier: list[Ask]
    link: str | None = None
    so_far: SoFar | None = None
    ran: Ran | None = None


class Linked(Model):
    """Be one request for whoever was given the link to it, and in whose name they decide."""

    asked: Asked
    user: str | None
    read_only: bool


class Answer(Model):
    """Decide a request. `arguments` are all of them as one JSON object, where they were edited.

    A rejection `takes_back` an approval only where who sends it has seen that there is one.
    """

    seal: str
    approved: bool
    takes_back: bool = False
    comment: str = ""
    arguments: str | None = None


class Edit(Model):
    """Be arguments that a person would put in the place of the asked ones, as one JSON object."""

    arguments: str


class Edited(Model):
    """Say what such arguments would be: each argument, and the fingerprint that an approval of them is bound to."""

    arguments: list[Argument]
    fingerprint: str


class AuditAsk(Model):
    """Say which entries are wanted: of a run, a tool or a person, of one kind, or with a text in them."""

    run: str = ""
    tool: str = ""
    person: str = ""
    what: str = ""
    text: str = ""


class AuditFile(Model):
    """Be one audit log that is not as it was written."""

    name: str
    entries: int
    line: int | None
    problems: list[str]


class Audit(Model):
    """Be what was asked, decided and done: the newest entries that fit the question, and every log that is not as it was written.

    `names` is what runs are called, by their ids, of those that are kept here.
    """

    where: str
    verified_at: str
    files: int
    entries: int
    broken: list[AuditFile]
    found: list[AuditEntry]
    more: int
    runs: list[str]
    tools: list[str]
    people: list[str]
    whats: list[str]
    names: dict[str, str] = {}


class Limit(Model):
    """Be one limit that counts now, and whose it is, `run` the id of its run; `written` is where, short and in full."""

    key: str
    process: str
    scope: str
    whose: str
    of: str
    run: str | None
    bar: Bar
    can: list[str]
    written: tuple[str, str] | None


class Limits(Model):
    """Be every limit that counts now, the fullest first."""

    says: list[tuple[Tone, str]]
    limits: list[Limit]


TreeRow = tuple[str, int, str, str, Tone, float, float | None, str, str, str, str, list[tuple[float, float]]]
"""A line of a run's tree: id, depth, kind, title, tone, begin and duration in ms, input, output, cost, what is to be remarked, and when it
waited for a person, each time as begin and duration."""


class Curve(Model):
    """Be where one limit stood over the run's time: points of (ms, percent used)."""

    title: str
    tone: Tone
    share: str
    warn: float | None
    points: list[tuple[float, float]]


class Run(Model):
    """Be one run whole: its head, its limits the fullest first, its tree outer ones first, and its limits over time.

    `ids` are what other programs call it, to be copied, and `jaeger` is the address of its trace there.
    """

    run: RunRow
    tone: Tone
    word: str
    facts: list[tuple[str, str]]
    limits: list[Bar]
    rows: list[TreeRow]
    left_out: int
    length: float
    curves: list[Curve]
    notes: list[tuple[float, str, str]]
    ids: list[tuple[str, str]]
    jaeger: str | None


class RunsAsk(Model):
    """Say which runs are wanted; times as a person writes them, such as "yesterday" or "7d"."""

    since: str = ""
    until: str = ""
    status: str = ""
    user: str = ""
    tenant: str = ""
    session: str = ""
    stop_reason: str = ""
    agent: str = ""
    model: str = ""
    tag: str = ""
    text: str = ""
    after: str = ""
    order: Literal["began", "cost", "tokens", "duration", "refused", "requests"] = "began"


class SpendAsk(Model):
    """Say what is to be added up: by one or two things, between two times, of one user, tenant, model or agent."""

    since: str = "today"
    until: str = ""
    by: str = "user,model"
    user: str | None = None
    tenant: str | None = None
    model: str | None = None
    agent: str | None = None


class Glance(Model):
    """Be what a row shows of a run beside figures: how its cost grew, in percent, and its fullest limit."""

    spent: list[float]
    limit: Bar | None


class Runs(Model):
    """Be a page of runs, each with its tone, the word for how it ended, and what is seen at a glance."""

    page: RunsPage
    words: list[tuple[Tone, str]]
    glances: list[Glance]


class Link(Model):
    """Be one scope of the chain that a refused call asked, with the fullest limit of it at that instant; `refused` said no.

    `id` is the scope's, by which it is found while it is open, and `written` where the limit was, short and in full.
    """

    id: str
    scope: str
    name: str
    refused: bool
    bar: Bar
    written: tuple[str, str] | None


class Call(Model):
    """Be one model call or tool call as a person reads it, `raw` as a program does, `curl` as a terminal sends it again."""

    id: str
    run: str
    title: str
    agent: str
    tone: Tone
    word: str
    sentence: str | None
    facts: list[tuple[str, str]]
    chain: list[Link]
    captured: bool
    messages: list[Message]
    reservation: list[tuple[str, str]]
    attributes: list[tuple[str, str]]
    raw: str
    curl: str | None
    ids: list[tuple[str, str]]
    jaeger: str | None


class Exported(Model):
    """Be one run with its calls by their ids, for a page in one file: when that was made, and what of the run was open then."""

    at: str
    open: list[NowRow]
    run: Run
    calls: dict[str, Call]


class SpendRow(Model):
    """Be one group of what was spent; `value` is its name as it is asked for, widths are percents of the dearest.

    `unknown` says that a price is missing.
    """

    key: str | None
    value: str | None
    width: float
    unknown: bool
    parts: list[tuple[int, float]]
    cost: str
    share: str
    calls: str
    input: str
    cached: str
    output: str
    each: str
    refused: int
    inside: list[SpendRow]


class SpendColumn(Model):
    """Be what was spent in one hour or day: parts of (series, percent of the tallest); `unknown` says that a price is missing."""

    at: str
    parts: list[tuple[int, float]]
    unknown: bool
    text: str


class Spend(Model):
    """Say who spent what between two times, and when; `tags` are what can be added up by besides, with the key to be shown."""

    says: str
    by: list[str]
    series: list[tuple[str, str]]
    columns: list[SpendColumn]
    ticks: list[tuple[float, str]]
    rows: list[SpendRow]
    tags: list[tuple[str, str]]


class WhatIfAsk(Model):
    """Say which limit is tried on past runs, or on each work of an agent."""

    kind: Literal["cost", "tokens", "requests", "turns"] = "cost"
    value: str = ""
    agent: str = ""
    since: str = "30d"


class WhatIf(Model):
    """Be what past runs came to, as a histogram, and which of them a limit would have refused.

    `bins` are (percent of the tallest, whether it is past the limit). `at` is where the limit stands in percent of the width, `now` where
    the one stands that counted last, and what it was: None where that is far from what any run came to; `spec` is the line to write down,
    and `suggested` the one that `suggest` would write. `agents` are those that can be asked for, with their names to be shown; `most` and
    `step` are those of a slider.
    """

    runs: int = 0
    unknown: int = 0
    says: str = ""
    bins: list[tuple[float, bool]] = []
    ticks: list[tuple[float, str]] = []
    at: float | None = None
    now: tuple[float | None, str] | None = None
    spec: str | None = None
    suggested: str | None = None
    typical: list[tuple[str, str]] = []
    agents: list[tuple[str, str]] = []
    most: float = 0.0
    step: float = 1.0


class Find(Model):
    """Be what words or an id lead to: what it is, its path on the page, and its name."""

    found: list[tuple[str, str, str]]
