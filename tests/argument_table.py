"""Arguments of every kind, given to tools of every signature by a model or by a program: what becomes of each today.

    python tests/argument_table.py        # writes argument_verdicts.txt anew; read what changes, line by line

A line of that file, between tabs: the signature, who gives the arguments (a model its text, a program its own values, or whoever has read
a model's text for it), what comes of it, and which arguments it comes of. It is what was judged and what the tool was given; or it is the
refusal in its own words.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import hashlib
import json
import pathlib
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import pydantic

import ravi_otel
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.errors import StopRun, ToolDeniedError
from ravi_otel.supervisor import Decision, DecisionKind, Gate

VERDICTS = Path(__file__).with_name("argument_verdicts.txt")
_MOST_SHOWN = 240
_SAME = (
    re.compile(r"^tool '\w+' was not run: (?=\w+:)"),
    re.compile(r"(\w+:)?\w+: \w+ (must be|takes) .*?, and (?=it |string )"),
    re.compile(r" Give plain values, or put no gate before it: .*$"),
    re.compile(r" \(tool_bad_args:\w+\)\.$"),
    re.compile(r"(?<=no JSON text: )(Expecting|Illegal) .* at character \d+(?=\.)"),
)
"""What every refusal says, and what each Python says in words of its own."""


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Address:
    street: str
    number: int = 7


class Order(pydantic.BaseModel):
    sku: str
    count: int = 1
    tags: list[str] = []


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    amount: float = pydantic.Field(alias="amountUsd")


class Lax(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=False)
    count: int


class Trimmed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(str_strip_whitespace=True)
    name: str


class Doubling(pydantic.BaseModel):
    amount: float

    @pydantic.field_validator("amount")
    @classmethod
    def double(cls, value: float) -> float:
        return value * 2


class Growing(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    count: int


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Table(dict[str, Any]):
    pass


class Opaque:
    pass


# -- signatures: each function gives back what it was given ---------------------------------------------------------


def anything(it):
    return it


def any_object(it: object):
    return it


def truth(it: bool):
    return it


def whole(it: int):
    return it


def number(it: float):
    return it


def text(it: str):
    return it


def nothing(it: None):
    return it


def raw(it: bytes):
    return it


def either_number(it: int | float):  # noqa: PYI041 - it is another signature
    return it


def perhaps_whole(it: int | None = None):
    return it


def text_or_whole(it: int | str):
    return it


def bounded(it: Annotated[int, pydantic.Field(ge=1, le=10)]):
    return it


def short(it: Annotated[str, pydantic.StringConstraints(min_length=1, max_length=5, strip_whitespace=True)]):
    return it


def literal(it: Literal["a", 1, True]):
    return it


def colour(it: Colour):
    return it


def level(it: Level):
    return it


def word(it: Word):
    return it


def wholes(it: list[int]):
    return it


def numbers(it: list[float]):
    return it


def bare_list(it: list):
    return it


def pair(it: tuple[int, str]):
    return it


def wholes_in_row(it: tuple[int, ...]):
    return it


def set_of_wholes(it: set[int]):
    return it


def frozen_texts(it: frozenset[str]):
    return it


def table(it: dict[str, int]):
    return it


def table_by_number(it: dict[int, str]):
    return it


def bare_table(it: dict):
    return it


def nested(it: dict[str, list[dict[str, float]]]):
    return it


def address(it: Address):
    return it


def order(it: Order):
    return it


def strict_model(it: Strict):
    return it


def lax_model(it: Lax):
    return it


def trimmed(it: Trimmed):
    return it


def doubling(it: Doubling):
    return it


def growing(it: Growing):
    return it


def secret(it: pydantic.SecretStr):
    return it


def lax_whole(it: Annotated[int, pydantic.Field(strict=False)]):
    return it


def converted(it: Annotated[int, pydantic.BeforeValidator(int)]):
    return it


def movies(it: list[Movie]):
    return it


def movie(it: Movie):
    return it


def point(it: Point):
    return it


def moment(it: dt.datetime):
    return it


def day(it: dt.date):
    return it


def span_of_time(it: dt.timedelta):
    return it


def money(it: decimal.Decimal):
    return it


def identity(it: uuid.UUID):
    return it


def path(it: pathlib.PurePosixPath):
    return it


def orders(it: list[Order] | Order):
    return it


def lazily(it: Iterator[int]):
    return it


def stranger(it: Opaque):
    return it


SIGNATURES = (
    anything,
    any_object,
    truth,
    whole,
    number,
    text,
    nothing,
    raw,
    either_number,
    perhaps_whole,
    text_or_whole,
    bounded,
    short,
    literal,
    colour,
    level,
    word,
    wholes,
    numbers,
    bare_list,
    pair,
    wholes_in_row,
    set_of_wholes,
    frozen_texts,
    table,
    table_by_number,
    bare_table,
    nested,
    address,
    order,
    strict_model,
    lax_model,
    trimmed,
    doubling,
    growing,
    secret,
    lax_whole,
    converted,
    movies,
    movie,
    point,
    moment,
    day,
    span_of_time,
    money,
    identity,
    path,
    orders,
    lazily,
    stranger,
)


def three(a: int, b: str = "b", *, c: float = 0.5):
    return a, b, c


def by_place(a: int, b: int = 2, /, *rest: int):
    return a, b, rest


def further(a: int = 1, **more: int):
    return a, more


def odd_defaults(a: Any = Opaque, b: Any = (1, 2), c: set[int] = {1}):  # noqa: B006 - what is said of such a default
    return getattr(a, "__name__", a), b, c


def keyed(amount: float, note: str | None = None):
    return amount, note


# -- what is given ----------------------------------------------------------------------------------------------------

WRITTEN = (
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "7",
    "-0",
    "0.0",
    "-0.0",
    "1.0",
    "1.5",
    "1e2",
    "1e400",
    "0.1",
    "9007199254740993",
    "9007199254740993.0",
    "18446744073709551615",
    "18446744073709551616",
    "1" + "0" * 400,
    "NaN",
    "Infinity",
    "-Infinity",
    '""',
    '"a"',
    '" a "',
    '"red"',
    '"yes"',
    '"1"',
    '"1.0"',
    '"true"',
    '"null"',
    r'"\ud800"',
    r'"\u0000"',
    '"é"',
    r'"e\u0301"',
    '"abcdef"',
    '"2024-02-29"',
    '"2024-02-29T10:00:00Z"',
    '"2024-02-29T10:00:00+02:00"',
    '"2024-02-30"',
    '"P1D"',
    '"12345678-1234-5678-1234-567812345678"',
    '"12345678123456781234567812345678"',
    '"/srv/x"',
    '"/srv//x/."',
    "[]",
    "[1]",
    "[1, 2]",
    "[2, 1]",
    "[1, 1]",
    "[1.0]",
    "[true]",
    '["1"]',
    '[1, "a"]',
    '["b", "a"]',
    "[null]",
    "[[1]]",
    "[1, 2, 3]",
    "{}",
    '{"a": 1}',
    '{"a": 1.0}',
    '{"a": true}',
    '{"a": "1"}',
    '{"1": "a"}',
    '{"01": "a"}',
    '{"a": [{"b": 1}]}',
    '{"a": [{"b": 1.5}]}',
    '{"street": "s"}',
    '{"street": "s", "number": 3}',
    '{"street": "s", "number": "3"}',
    '{"street": "s", "extra": 1}',
    '{"number": 3}',
    '{"sku": "s"}',
    '{"sku": "s", "count": 2.0}',
    '{"sku": "s", "count": 2, "tags": ["t"]}',
    '{"sku": "s", "colour": "red"}',
    '[{"sku": "s"}]',
    '{"amountUsd": 5}',
    '{"amount": 5}',
    '{"amount": 0}',
    '{"count": 1}',
    '{"count": 1, "more": 2}',
    '[{"title": "t", "extra": 1}]',
    '{"count": "1"}',
    '{"name": " n "}',
    '{"title": "t"}',
    '{"title": "t", "year": 2000}',
    '{"title": "t", "year": null}',
    '{"x": 1, "y": 2}',
    '{"a": 1, "a": 2}',
)

OWN = (
    "None",
    "True",
    "1",
    "1.0",
    "-0.0",
    "float('nan')",
    "10 ** 30",
    "'a'",
    "'\\ud800'",
    "b'ab'",
    "b'\\xff'",
    "(1, 'a')",
    "(1, 2)",
    "[1, 2]",
    "[2.0]",
    "{2, 1}",
    "frozenset({'a'})",
    "range(3)",
    "collections.deque([1])",
    "{'a': 1}.keys()",
    "{'a': 1}",
    "{1: 'a'}",
    "MappingProxyType({'a': 1})",
    "collections.OrderedDict(a=1)",
    "collections.Counter('a')",
    "Table(a=1)",
    "Text('a')",
    "Whole(1)",
    "iter([1])",
    "(n for n in [1])",
    "[iter([1])]",
    "Colour.RED",
    "Level.LOW",
    "Word.YES",
    "Address('s')",
    "Order(sku='s')",
    "Strict(amountUsd=5)",
    "Doubling.model_construct(amount=2.0)",
    "{'title': 't'}",
    "Point(1, 2)",
    "dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC)",
    "dt.datetime(2024, 2, 29, 10)",
    "dt.date(2024, 2, 29)",
    "dt.timedelta(days=1)",
    "decimal.Decimal('1.50')",
    "uuid.UUID(int=5)",
    "pathlib.PurePosixPath('/srv/x')",
    "[Order(sku='s')]",
    "[(1, 'a')]",
    "{'a': [{'b': 1}]}",
    "Opaque()",
    "Opaque",
    "len",
    "...",
    "1j",
)

TEXTS = (
    (three, '{"a": 1}'),
    (three, '{"a": 1, "b": "x", "c": 1}'),
    (three, '{"b": "x"}'),
    (three, '{"a": 1, "d": 2}'),
    (three, '{"a": 1, "B": "x"}'),
    (three, '{"a": 1, "а": 2}'),  # noqa: RUF001 - the second one is Cyrillic
    (three, '{"a": 1, "a": 1}'),
    (three, '{"a": null}'),
    (three, '{"a": 1, "b": null}'),
    (three, "{}"),
    (three, ""),
    (three, "null"),
    (three, "[]"),
    (three, '"a"'),
    (three, '{"a": 1} {"a": 2}'),
    (three, '{"a": 1,}'),
    (three, "{'a': 1}"),
    (three, '{"a": 01}'),
    (three, '\ufeff{"a": 1}'),
    (three, ' \n{"a": 1}\t'),
    (three, '{"": 1, "a": 1}'),
    (three, '{"self": 1, "a": 1}'),
    (three, '{"a": 1, "c": -0.0}'),
    (three, '{"a": 1, "c": 9007199254740993}'),
    (by_place, '{"a": 1}'),
    (by_place, '{"a": 1, "b": 3}'),
    (by_place, '{"a": 1, "rest": [2]}'),
    (by_place, '{"b": 3}'),
    (further, "{}"),
    (further, '{"a": 2, "x": 3}'),
    (further, '{"x": "3"}'),
    (further, '{"x": 3.0}'),
    (further, '{"more": 3}'),
    (further, '{"__class__": 3}'),
    (further, '{"x y": 3}'),
    (further, '{"é": 3}'),
    (further, '{"A": 3}'),
    (further, '{"a\\u200b": 3}'),
    (odd_defaults, "{}"),
    (odd_defaults, '{"b": [3], "c": [2, 1]}'),
    (keyed, '{"amount": 1}'),
    (keyed, '{"amount": 1, "note": "n"}'),
    (keyed, '{"amount": "1"}'),
    (keyed, '{"Amount": 1}'),
)

CALLED = (
    (three, "1"),
    (three, "1, 'x', c=1"),
    (three, "a=1, b='x'"),
    (three, "'1'"),
    (three, ""),
    (three, "1, d=2"),
    (three, "1, a=2"),
    (three, "1, 'x', 0.5, 3"),
    (by_place, "1"),
    (by_place, "1, 2, 3, 4"),
    (by_place, "1, 2, '3'"),
    (by_place, "1, b=2"),
    (further, "1, x=2"),
    (further, "x='2'"),
    (further, "more=2"),
    (further, "__x=2"),
    (odd_defaults, ""),
    (odd_defaults, "b=(3, 4), c={2}"),
    (keyed, "decimal.Decimal(1)"),
    (keyed, "1, note=None"),
)

LARGE = {
    "text of 2^20 characters": lambda: {"it": "a" * (1 << 20)},
    "text of 2^20 + 1 characters": lambda: {"it": "a" * ((1 << 20) + 1)},
    "20,000 values": lambda: {"it": [0] * 19_998},
    "20,001 values": lambda: {"it": [0] * 19_999},
    "31 lists in each other": lambda: {"it": _nested(31)},
    "32 lists in each other": lambda: {"it": _nested(32)},
    "1,000 lists in each other": lambda: {"it": _nested(900)},
    "a key that is a number": lambda: {"it": {1: 2}},
    "a name that is a number": lambda: {1: 2},
    "half a character in a key": lambda: {"it": {"\ud800": 1}},
    "NaN in a list": lambda: {"it": [float("nan")]},
    "a tuple": lambda: {"it": (1, 2)},
    "a set": lambda: {"it": {1}},
    "a mapping proxy": lambda: {"it": MappingProxyType({"a": 1})},
    "text of a class of its own": lambda: {"it": Text("a")},
    "a table of a class of its own": lambda: {"it": Table(a=1)},
    "bytes": lambda: {"it": b"a"},
    "no mapping": lambda: [("it", 1)],
}
"""What no JSON text says, or says at length, given as a mapping of values by whoever read it for a model."""


def _nested(deep: int) -> Any:
    made: Any = 0
    for _ in range(deep):
        made = [made]
    return made


# -- what comes of it -----------------------------------------------------------------------------------------------


class _Reads:
    """Approve everything, and keep what was to be judged."""

    def __init__(self) -> None:
        self.judged: str | None = None

    def review(self, action: Any, state: object, policy: object) -> Decision:
        del state, policy
        self.judged = json.dumps(action["args"], sort_keys=True)
        return Decision(DecisionKind.APPROVE, "as it is")


class _Tool:
    """One signature behind a gate of its own."""

    def __init__(self, fn: Any) -> None:
        self.supervisor = _Reads()
        self.gate = Gate(self.supervisor, tools=[fn], loops=False)
        self.fn = fn
        self.called = ravi_otel.tool(fn, gate=self.gate)

    def asked_by_model(self, arguments: Any) -> str:
        return self._verdict(lambda: ToolCall(self.fn.__name__, self.fn, arguments, self.gate).run())

    def called_by_program(self, arguments: str) -> str:
        return self._verdict(lambda: eval(f"called({arguments})", {**globals(), "called": self.called}))

    def _verdict(self, call: Any) -> str:
        self.supervisor.judged = None
        try:
            given = call()
        except (ToolDeniedError, StopRun) as refused:
            return f"refused: {_cut(_told(str(refused)))}"
        except TypeError as error:  # Python's own, for what has no name
            return f"TypeError: {_cut(str(error))}"
        judged, given = _cut(str(self.supervisor.judged)), _cut(_shown(given))
        return f"judged: {judged} given: {given}"


def _told(said: str) -> str:
    for same in _SAME:
        said = same.sub("", said)
    return said


def _shown(value: Any) -> str:
    if type(value) in (set, frozenset):
        return f"{type(value).__name__} {sorted(value)}"
    if isinstance(value, Opaque):
        return "an Opaque"
    if type(value) is collections.OrderedDict:
        return f"OrderedDict of {_shown(dict(value))}"
    return repr(value).encode("ascii", "backslashreplace").decode() if type(value).__name__ != "generator" else "a generator"


def _cut(said: str) -> str:
    said = said.replace("typing.Annotated[", "Annotated[")  # as Python 3.14 writes it
    said = said.encode("unicode_escape").decode()
    if len(said) <= _MOST_SHOWN:
        return said
    return f"{said[:_MOST_SHOWN]}... {len(said)} {hashlib.sha256(said.encode()).hexdigest()[:8]}"


Row = tuple[str, str, str]
"""The signature, who gives the arguments, and these."""


def verdicts() -> dict[Row, str]:
    """Ask for every call of the table, in a run, and say what came of each."""
    found: dict[Row, str] = {}
    with ravi_otel.run("table"):
        for fn in SIGNATURES:
            tool = _Tool(fn)
            found |= {(fn.__name__, "model", each): tool.asked_by_model(f'{{"it": {each}}}') for each in WRITTEN}
            found |= {(fn.__name__, "program", each): tool.called_by_program(each) for each in OWN}
        found |= {(fn.__name__, "model", each): _Tool(fn).asked_by_model(each) for fn, each in TEXTS}
        found |= {(fn.__name__, "program", each): _Tool(fn).called_by_program(each) for fn, each in CALLED}
        for fn in (anything, text, wholes):
            found |= {(fn.__name__, "values", each): _Tool(fn).asked_by_model(make()) for each, make in LARGE.items()}
    return {(fn, who, _cut(what)): verdict for (fn, who, what), verdict in found.items()}


def written(found: dict[Row, str]) -> str:
    """Return the text of the file: what comes of several arguments stands there once."""
    lines: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
    for (fn, who, what), verdict in found.items():
        lines[fn, who, verdict].append(what)
    return "".join("\t".join((*of, *arguments)) + "\n" for of, arguments in lines.items())


def read() -> dict[Row, str]:
    """Return what the file says."""
    found: dict[Row, str] = {}
    for line in VERDICTS.read_text(encoding="ascii").splitlines():
        fn, who, verdict, *arguments = line.split("\t")
        found |= {(fn, who, each): verdict for each in arguments}
    return found


if __name__ == "__main__":
    import argument_table  # whose classes have the names that they have in tests

    VERDICTS.write_text(argument_table.written(argument_table.verdicts()), encoding="ascii")
