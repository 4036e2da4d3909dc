"""Read the arguments of a call strictly, by the tool's own signature: nothing is converted or lost on the way, or it is refused by name.

Of a program that calls its own functions the JSON that stands for its values is found, and nothing is read that can be read once only.
"""

from __future__ import annotations

import collections
import collections.abc
import collections.abc as collections_abc
import contextlib
import datetime as dt
import decimal
import fractions
import functools
import inspect
import pathlib
import sys
import types
import typing
import unicodedata
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from enum import Enum
from json import dumps, loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, TypeAlias, cast

import pydantic
import typing_extensions

from ravi_otel.errors import ConfigurationError, RaviError, ToolDeniedError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor._json import (
    MOST_DEPTH,
    MOST_VALUES,
    NotJsonError,
    NotPlainError,
    canonical,
    encode_canonical,
    flat_copy,
    is_json_value,
    is_scalar,
    plain,
    read_json,
)


def _type_of(value: object) -> Any:
    return type(value)


_EMPTY: Final[dict[str, str]] = {}
_ONCE: Final = ("__next__", "__anext__", "__await__")
_LISTS: Final[frozenset[Any]] = frozenset(
    {list, tuple, range, collections.deque, _type_of(_EMPTY.keys()), _type_of(_EMPTY.values()), _type_of(_EMPTY.items())}
)
_TABLES: Final[frozenset[Any]] = frozenset(
    {dict, types.MappingProxyType, collections.OrderedDict, collections.defaultdict, collections.Counter}
)
_SETS: Final[frozenset[Any]] = frozenset({set, frozenset})
_DATES: Final[frozenset[Any]] = frozenset({dt.datetime, dt.date, dt.time})
_AS_TEXT: Final[frozenset[Any]] = frozenset(
    {
        decimal.Decimal,
        fractions.Fraction,
        uuid.UUID,
        dt.timedelta,
        pathlib.PurePosixPath,
        pathlib.PureWindowsPath,
        pathlib.PosixPath,
        pathlib.WindowsPath,
    }
)
_PLAIN_KINDS: Final = (str, int, float, bytes, dict, list, tuple)
_READ_BY: Final = ("__iter__", "__getitem__", "__len__")


def json_for_program_value(value: object, *, anything: bool) -> Any:
    """Return the JSON value that stands for a program's own: a list for a tuple, a set, a range or a view of a dict.

    With `anything`, for a parameter that takes whatever it is given, also text for a date, a Decimal and its like. What it is given as
    is not changed. Raises NotPlainError for what has nothing that stands for it, and for anything that can be read only once.
    """
    if is_read_once(value):
        if any(hasattr(_type_of(value), name) for name in _ONCE):
            raise NotPlainError("not_json", "can be read only once, which would leave nothing for the tool; give a list.")
        raise NotPlainError(
            "not_json", f"is a {_type_of(value).__name__[:60]} with what can be read only once, or with more than is read, in it."
        )
    return plain(_ProgramValueReader(anything=anything).of(value, 0))


class _ProgramValueReader:
    def __init__(self, *, anything: bool) -> None:
        self._anything = anything
        self._left = MOST_VALUES

    def of(self, value: Any, depth: int) -> Any:
        """Return what stands for one value."""
        self._left -= 1
        if self._left < 0:
            raise NotPlainError("too_large", f"is beyond the {MOST_VALUES} values that are read; give less.")
        if depth > MOST_DEPTH:
            raise NotPlainError("too_deep", f"is nested deeper than {MOST_DEPTH} levels; give it flat.")
        kind = _type_of(value)
        if kind in _TABLES:
            return {name: self.of(each, depth + 1) for name, each in dict(value).items()}
        if kind in _LISTS or _is_named_tuple(kind):
            return self._list(value, depth)
        if kind in _SETS:
            return sorted(self._list(value, depth), key=canonical)
        return self._scalar(value, kind) if self._anything else value

    def _list(self, values: Iterable[Any], depth: int) -> list[Any]:
        made: list[Any] = []
        for each in values:  # one by one: a range may be longer than anybody reads
            made.append(self.of(each, depth + 1))  # noqa: PERF401 - `of` counts, and ends it
        return made

    def _scalar(self, value: Any, kind: type[Any]) -> Any:
        if kind in _DATES:
            return value.isoformat()
        if kind in _AS_TEXT:
            return str(value)
        if kind is bytes:
            return _text_of(value)
        return value.value if issubclass(kind, Enum) else value


def _text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _is_named_tuple(kind: type[Any]) -> bool:
    """Tell a plain named tuple, which is read as the tuple it is."""
    return kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and not any(name in vars(kind) for name in _READ_BY)


def is_read_once(value: object) -> bool:
    """Whether something in a value is an iterator, a generator or something to await: looking at it would use it up, or never end.

    Of what is too large to be looked through it is said too.
    """
    return _is_read_once(value, 0, [MOST_VALUES])


def _is_read_once(value: Any, depth: int, left: list[int]) -> bool:
    kind = _type_of(value)
    left[0] -= 1
    if left[0] < 0 or any(hasattr(kind, name) for name in _ONCE):
        return True
    if kind is str or kind is bytes or depth > MOST_DEPTH or isinstance(value, (type, types.ModuleType, types.FunctionType, Enum)):
        return False
    if issubclass(kind, dict):
        return any(_is_read_once(each, depth + 1, left) for pair in cast("Any", dict).items(value) for each in pair)
    if issubclass(kind, (list, tuple, set, frozenset, collections.deque)):
        return any(_is_read_once(each, depth + 1, left) for each in list(cast("Iterable[Any]", value))[: left[0] + 1])
    held = getattr(value, "__dict__", None)
    return isinstance(held, dict) and any(_is_read_once(each, depth + 1, left) for each in list(cast("dict[str, Any]", held).values()))


def is_disguised(value: Any, depth: int) -> bool:
    """Whether something in a program's own value poses as a plain one: a subclass of text, of a number or of a container."""
    kind = cast("Any", type(value))
    if depth > MOST_DEPTH:
        return True
    if kind is dict:
        return any(is_disguised(each, depth + 1) for pair in value.items() for each in pair)
    if kind is list or kind is tuple:
        return any(is_disguised(each, depth + 1) for each in value)
    own = issubclass(kind, Enum) or (issubclass(kind, tuple) and hasattr(cast("Any", kind), "_fields"))  # read by their annotation
    return issubclass(kind, _PLAIN_KINDS) and kind not in (*_PLAIN_KINDS, bool) and not own


def without_iterators(hint: Any) -> Any:
    """Write an annotation with a list for `Iterable`: pydantic would give the tool an iterator, which only one can read."""
    if hint is collections_abc.Iterable or hint is typing.Iterable:
        return list
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is collections_abc.Iterable:
        return list[without_iterators(args[0])]  # type: ignore[misc]  # it is made while the program runs
    if origin is typing.Annotated:
        return typing.Annotated[(without_iterators(args[0]), *args[1:])]
    return hint


def is_read_lazily(schema: Any, depth: int = 0) -> bool:
    """Whether a pydantic schema reads something bit by bit."""
    if depth > MOST_DEPTH:
        return False
    if isinstance(schema, Mapping):
        known = cast("Mapping[str, Any]", schema)
        return known.get("type") == "generator" or any(is_read_lazily(each, depth + 1) for each in known.values())
    return isinstance(schema, (list, tuple)) and any(is_read_lazily(each, depth + 1) for each in cast("list[Any]", schema))


_MISSING: Final = object()
_MOST_SHOWN: Final = 120
_EXACTLY: Final[tuple[Any, ...]] = (bool, int, float, str)
_LAZY: Final = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
_OPAQUE: Final[tuple[Any, ...]] = (typing.Literal, typing.get_origin(Callable[..., Any]))
_MARKS: Final = (typing.Required, typing.NotRequired)
_NO_JSON: Final = ("callable", "is-instance", "is-subclass")
_ONE_AWAITED: Final = (collections.abc.Awaitable, collections.abc.Coroutine)


class UnfitError(RaviError, ValueError):
    """Report a value that is not what a parameter takes; `code` is bad_arg_type, extra_tool_args or unknown_arg_spec."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the code when the error crosses a process."""
        return (type(self), (self.code, str(self)))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: `shown` is its type in words, `adapter` what checks it, None where nothing can.

    `default` is the default as a plain JSON value, where it has one that JSON has; `anything` is that it takes whatever it is given.
    """

    name: str
    shown: str
    required: bool
    adapter: pydantic.TypeAdapter[Any] | None
    default: Any = _MISSING
    exactly: type | None = None
    """bool, int, float or str where it takes just that: such a value needs no reading and writing to be told to stay what it is."""
    anything: bool = False

    @property
    def has_plain_default(self) -> bool:
        """Whether its default can be filled in, shown and judged."""
        return self.default is not _MISSING

    @property
    def can_be_given(self) -> bool:
        """Whether there may be a value that fits: a function, a class or an object has nothing in JSON that stands for it."""
        if self.adapter is None:
            return False
        schema = cast("Any", self.adapter.core_schema)
        return schema["type"] not in _NO_JSON and schema.get("schema", {}).get("cls") is not type

    def fit(self, value: object) -> Any:
        """Return the plain value that stands for `value`; raise UnfitError or NotPlainError.

        What it is made into must be written as it was given: a key that would be dropped, a number or a truth value that would become
        another, and a type that hides what is in it are refused.
        """
        if self.exactly is not None and is_scalar(value):
            taken = self._taken(value)
            if taken is not None:
                return taken
        adapter = self._known()
        given = self._given(adapter, value)
        made = _validate(adapter, given)
        effective = _reconcile(given, _dump(adapter, made))
        again = _validate(adapter, effective)
        if canonical(_reconcile(effective, _dump(adapter, again))) != canonical(effective):
            raise UnfitError("bad_arg_type", "it is read as something else each time.")
        if not _is_same(made, again):
            raise UnfitError("unknown_arg_spec", "its type hides or changes what it is given, so nobody could judge it.")
        return effective

    def made(self, value: Any) -> Any:
        """Make of a plain value what the tool is given; raise UnfitError."""
        if self.exactly is not None and type(value) is self.exactly and is_scalar(value):
            return value
        return _validate(self._known(), value)

    def check(self, value: Any) -> None:
        """Hold a Python value, as a tool returns it, to the annotation; raise UnfitError."""
        if self.adapter is None:
            return
        try:
            self.adapter.validate_python(value, strict=True)
        except Exception as error:  # noqa: BLE001 - raised outside of the group, as it is
            raise UnfitError("bad_arg_type", _first_problem(error)) from None

    def _taken(self, value: Any) -> Any:
        """Return a scalar that is what is asked for, and a whole number as the float it is exactly; None for any other."""
        kind = _type_of(value)
        if self.exactly is float and (kind is float or kind is int):
            return float(value) + 0.0 if float(value) == value else None  # -0.0 is taken as 0.0
        return value if kind is self.exactly else None

    def _known(self) -> pydantic.TypeAdapter[Any]:
        if self.adapter is None:
            raise UnfitError("unknown_arg_spec", "that cannot be checked; annotate it with a type that pydantic knows.")
        return self.adapter

    def _given(self, adapter: pydantic.TypeAdapter[Any], value: object) -> Any:
        try:
            return plain(value)
        except NotPlainError as error:
            if error.code != "not_json" or is_disguised(value, 0):
                raise
        if is_read_once(value):
            raise UnfitError("bad_arg_type", "it can be read only once, which would leave nothing for the tool; give a list.")
        try:
            made = adapter.validate_python(value, strict=True)
        except Exception as error:  # noqa: BLE001 - raised outside of the group, as it is
            raise UnfitError("bad_arg_type", _first_problem(error)) from None
        given = plain(_dump(adapter, made))
        if not _is_same(made, _validate(adapter, given)):
            raise UnfitError("bad_arg_type", "it would be another value once it was written as JSON.")
        return given


def _validate(adapter: pydantic.TypeAdapter[Any], value: Any) -> Any:
    try:
        return adapter.validate_json(dumps(value), strict=True)
    except Exception as error:  # noqa: BLE001 - raised outside of the group, as it is
        raise UnfitError("bad_arg_type", _first_problem(error)) from None


def _dump(adapter: pydantic.TypeAdapter[Any], made: Any) -> Any:
    try:
        return loads(adapter.dump_json(made, by_alias=True, warnings="error").decode())
    except Exception as error:  # noqa: BLE001 - raised outside of the group, as it is
        raise UnfitError("unknown_arg_spec", f"it cannot be written as JSON: {_first_problem(error)}") from None


def _first_problem(error: Exception) -> str:
    """Say the first thing that is wrong, without the value, which is the caller's to show or not."""
    if isinstance(error, pydantic.ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])[:_MOST_SHOWN]
        said = f"{_as_sentence(first['msg'][:_MOST_SHOWN])}{f' (at {where!a})' if where else ''}"
    elif isinstance(error, ToolDeniedError):  # a validator called a tool, and it is said why that was refused
        said = f"its validation failed: {error}"
    else:
        said = type(error).__name__
    return f"{said.rstrip('.')}."


def _as_sentence(said: str) -> str:
    """Say what pydantic says of an "Input" as the end of a sentence about an argument."""
    return f"it{said.removeprefix('Input')}" if said.startswith("Input ") else f"{said[:1].lower()}{said[1:]}"


def _reconcile(given: Any, written: Any) -> Any:
    """Return what is judged and run: what was given, with what a nested default adds; raise UnfitError where they are not the same."""
    kind, other = _type_of(given), _type_of(written)
    if kind is dict and other is dict:
        return _reconcile_table(given, written)
    if kind is list and other is list:
        return _reconcile_list(given, written)
    if kind is str and other is str:
        return written
    if kind is int or kind is float:
        return _reconcile_number(given, written)
    if kind is other and given == written:
        return given
    raise UnfitError("bad_arg_type", f"it would be read as {type(written).__name__}.")


def _reconcile_table(given: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    lost = next((key for key in given if key not in written), None)
    if lost is not None:
        raise UnfitError("extra_tool_args", f"it has no {lost[:_MOST_SHOWN]!a}.")
    return {key: _reconcile(given[key], each) if key in given else each for key, each in written.items()}


def _reconcile_list(given: list[Any], written: list[Any]) -> list[Any]:
    if len(given) != len(written):
        raise UnfitError("bad_arg_type", "an item would be lost; give each once.")
    ranked = {_number_key(each): each for each in written}
    ranks = [_number_key(each) for each in given]
    if ranks != [_number_key(each) for each in written] and all(
        rank in ranked for rank in ranks
    ):  # a set is written in an order of its own
        return [_reconcile(each, ranked[rank]) for each, rank in zip(given, ranks, strict=True)]
    return [_reconcile(one, other) for one, other in zip(given, written, strict=True)]


def _number_key(value: Any) -> str:
    return canonical(float(value) if type(value) is int else value)


def _reconcile_number(given: float, written: Any) -> Any:
    """Keep a number: as the same number of the type that is asked for, or as it is where the type writes itself as text (Decimal)."""
    if type(written) in (int, float) and written == given:
        return written + 0.0 if type(written) is float else written  # -0.0 is written as 0.0: it does the same
    if type(written) is str:
        try:
            if Decimal(written) == Decimal(repr(given)):
                return given
        except InvalidOperation:
            pass
    raise UnfitError("bad_arg_type", f"the number would be read as {checks.show(written)}.")


def _is_same(made: Any, again: Any) -> bool:
    try:
        return bool(made == again) or (type(made) is type(again) and cast("Any", type(made).__eq__) is object.__eq__)
    except Exception:  # noqa: BLE001 - a lock or a connection in it; whatever a copy of the program's own raises
        return False


def read_parameters(fn: Callable[..., Any], tool: str) -> tuple[dict[str, Parameter], Parameter | None, Parameter | None]:
    """Read the parameters that have a name, what further names take (`**kwargs`), and what `*args` takes; None where there is no such."""
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):
        raise ConfigurationError(f"tool {tool!r} is {checks.show(fn)}, whose signature cannot be read: wrap it in a function.") from None
    named: dict[str, Parameter] = {}
    rest: Parameter | None = None
    placed: Parameter | None = None
    for each in signature.parameters.values():
        known, hint = _resolve_hint(fn, each.annotation)
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            if typing.get_origin(hint) is typing.Unpack and typing.is_typeddict(typing.get_args(hint)[0]):
                named |= _unpacked(typing.get_args(hint)[0])
            else:
                rest = _parameter(each.name, known, hint)
        elif each.kind is inspect.Parameter.VAR_POSITIONAL:
            placed = _parameter(each.name, known, hint)
        else:
            named[each.name] = _parameter(each.name, known, hint, each.default)
    return named, rest, placed


def read_return(fn: Callable[..., Any]) -> Parameter | None:
    """Read what is returned, None where nothing is said of it or it comes bit by bit."""
    try:
        annotation = inspect.signature(fn).return_annotation
    except (ValueError, TypeError):
        return None
    known, hint = _resolve_hint(fn, annotation)
    if not known or annotation is inspect.Signature.empty:
        return None
    origin = typing.get_origin(hint)
    if origin in _ONE_AWAITED:
        hint = typing.get_args(hint)[-1]
    elif origin in _LAZY or hint in _LAZY or hint in _ONE_AWAITED or isinstance(hint, typing.TypeVar):
        return None
    exactly = _exact_type(hint)
    return Parameter("return", _type_in_words(hint), required=True, adapter=_adapter(hint, arbitrary=True), exactly=exactly)


def _parameter(name: str, known: bool, hint: Any, default: Any = inspect.Parameter.empty) -> Parameter:
    required = default is inspect.Parameter.empty
    exactly = _exact_type(hint) if known else None
    shown = _type_in_words(hint) if known else "of its own type"
    adapter = _adapter(without_iterators(hint)) if known else None
    if adapter is not None and is_read_lazily(adapter.core_schema):
        adapter = None
    bare = Parameter(name, shown, required, adapter, exactly=exactly, anything=known and hint in (Any, object))
    if required:
        return bare
    try:
        return replace(bare, default=bare.fit(default))
    except (UnfitError, NotPlainError):
        return bare  # a default that JSON does not have stays the tool's own


def _exact_type(hint: Any) -> type | None:
    """Return bool, int, float or str where a hint is just that."""
    return next((each for each in _EXACTLY if each is hint), None)


def _unpacked(kind: Any) -> Iterator[tuple[str, Parameter]]:
    for name, (hint, required) in _typed_dict_keys(kind).items():
        yield name, Parameter(name, _type_in_words(hint), required, _adapter(hint))


def _typed_dict_keys(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each key of a TypedDict, and whether it must be there: its own set of them is wrong where annotations are text."""
    made: dict[str, tuple[Any, bool]] = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        origin = typing.get_origin(hint)
        required = origin is not typing.NotRequired and (origin is typing.Required or name in kind.__required_keys__)
        made[name] = (typing.get_args(hint)[0] if origin in _MARKS else hint, required)
    return made


def _resolve_hint(fn: Callable[..., Any], annotation: Any) -> tuple[bool, Any]:
    """Return the type that an annotation means, text or not, and whether that could be told."""
    if annotation is inspect.Parameter.empty:
        return True, Any
    carrier: Any = lambda: None  # noqa: E731 - only there to have annotations
    carrier.__annotations__ = {"it": annotation}
    try:
        return True, typing.get_type_hints(carrier, globalns=_globals(fn), include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - a lock or a connection in it; whatever a copy of the program's own raises
        return False, Any


def _globals(fn: Any) -> dict[str, Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if inspect.isclass(fn):
        fn = cast("Any", fn).__init__
    elif not hasattr(fn, "__globals__") and not isinstance(fn, types.MethodType):
        fn = getattr(cast("Any", type(fn)), "__call__", fn)  # noqa: B004 - the method is what has the annotations
    return cast("dict[str, Any]", getattr(inspect.unwrap(getattr(fn, "__func__", fn)), "__globals__", {}))


def _adapter(hint: Any, *, arbitrary: bool = False) -> pydantic.TypeAdapter[Any] | None:
    with contextlib.suppress(Exception):  # a type's own hooks may raise anything; it is then one that cannot be checked
        return pydantic.TypeAdapter(_known_to_pydantic(hint))
    with contextlib.suppress(Exception):
        return pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True)) if arbitrary else None
    return None


def _known_to_pydantic(hint: Any) -> Any:
    """Spell a type as pydantic knows it: `object` as anything, and typing's own TypedDict, which it takes from Python 3.12 on, anew."""
    if hint is object:
        return Any
    if typing.is_typeddict(hint) and sys.version_info < (3, 12):
        made: Any = typing_extensions.TypedDict
        return made(hint.__name__, _typed_dict_fields(hint), total=True)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if not args or origin in _OPAQUE:
        return hint
    known = tuple(map(_known_to_pydantic, args[:1] if origin is typing.Annotated else args))
    if origin is typing.Annotated:
        return typing.Annotated[(known[0], *args[1:])]
    if origin is types.UnionType or known == args:
        return hint if known == args else cast("Any", typing.Union)[known]
    return origin[known]


def _typed_dict_fields(kind: Any) -> dict[str, Any]:
    keys = {name: (_known_to_pydantic(hint), required) for name, (hint, required) in _typed_dict_keys(kind).items()}
    return {name: hint if required else typing_extensions.NotRequired[hint] for name, (hint, required) in keys.items()}


def _type_in_words(hint: Any) -> str:
    if hint is Any or hint is object:
        return "any JSON value"
    text = inspect.formatannotation(hint)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def schemas(parameters: Mapping[str, Parameter]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON schema of each, and the definitions they share; one that cannot be checked allows nothing."""
    known = [(name, "validation", each.adapter) for name, each in parameters.items() if each.adapter is not None]
    made, shared = pydantic.TypeAdapter.json_schemas(cast("Any", known), ref_template="#/$defs/{model}")
    properties: dict[str, Any] = {}
    for name, each in parameters.items():
        properties[name] = {"not": {}} if each.adapter is None else dict(made[cast("Any", (name, "validation"))])
        if each.has_plain_default:
            properties[name]["default"] = plain(each.default)
    return properties, cast("dict[str, Any]", shared.get("$defs", {}))


_OWN_CODES: Final = frozenset({"too_deep", "too_large", "half_character", "unknown_arg_spec"})
_OR_NO_GATE: Final = " Give plain values, or put no gate before it: instrument_tools(..., skip=[{!r}])."
_SPELLED_WITH_ARGUMENT: Final = frozenset({"missing_required_arg", "bad_arg_type", "unknown_arg_spec"})


_reading: Final[ContextVar[tuple[_ReadingOf, ...]]] = ContextVar("ravi_otel_reading", default=())

ProgramValues: TypeAlias = dict[str, tuple[Any, str]]
"""What a program gave that JSON does not have, by its argument, and the canonical text of what stands for it."""


class BadArguments(RaviError):  # noqa: N818 - named as the stop reason that comes of it, tool_bad_args
    """Refuse arguments before the tool sees them.

    `code` is one of non_json, not_object, duplicate_key, missing_required_arg, extra_tool_args, bad_arg_type, unknown_arg_spec, too_deep,
    too_large and half_character; `tool` is whose, `argument` which of them, None where it is about all. `message` is for a model, too.
    """

    def __init__(self, code: str, tool: str, argument: str | None, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.tool = tool
        self.argument = argument
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the fields when the error crosses a process."""
        return (type(self), (self.code, self.tool, self.argument, self.message))

    @property
    def spelling(self) -> str:
        """Return it as programs read it: `missing_required_arg:T:A`, `extra_tool_args:T`."""
        named = self.code in _SPELLED_WITH_ARGUMENT and self.argument is not None
        return f"{self.code}:{self.tool}:{self.argument}" if named else f"{self.code}:{self.tool}"


class BadResult(RaviError):  # noqa: N818 - named as the stop reason that comes of it, tool_bad_result
    """Report that a tool returned what its annotation does not say; `tool` is which."""

    def __init__(self, tool: str, message: str) -> None:
        super().__init__(message)
        self.tool = tool
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the fields when the error crosses a process."""
        return (type(self), (self.tool, self.message))


class _ReadingOf:
    """The time in which a tool's arguments, or its result, are read: a validator of the program's own may call anything meanwhile."""

    __slots__ = ("_token", "is_open", "signature")

    def __init__(self, signature: ToolSignature) -> None:
        self.signature = signature
        self.is_open = True
        self._token: Token[tuple[_ReadingOf, ...]] | None = None

    def __enter__(self) -> None:
        self._token = _reading.set((*_reading.get(), self))

    def __exit__(self, *_: object) -> None:
        self.is_open = False  # for what was started meanwhile, and goes on in a copy of this context
        if self._token is not None:
            _reading.reset(self._token)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call, read once: handed on as they are, and copied for whoever may change them.

    `plain` is the JSON value that is judged, in the order of the signature, and `canonical` the one text of it. `exact` says that each
    value is of the simple type that is asked for: the tool is called with just that.
    """

    plain: dict[str, Any]
    canonical: str
    exact: bool = False

    def copy(self) -> dict[str, Any]:
        """Return a copy of `plain`, whose owner may do with it as they like."""
        copied: dict[str, Any] = dict(self.plain) if self.exact else plain(self.plain)
        return copied


NO_ARGUMENTS: Final = Arguments({}, "{}", exact=True)


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """What a tool takes and gives, as its own signature says.

    A parameter without an annotation takes any JSON value. One whose annotation cannot be checked (`unknown_arg_spec`) takes nothing.
    `**kwargs` takes further names, each a plain ASCII identifier, held to its annotation; `*args` takes nothing but what a program gives.
    """

    name: str
    description: str
    parameters: Mapping[str, Parameter]
    rest: Parameter | None = None
    returns: Parameter | None = None
    required: tuple[str, ...] = field(default=())
    placed: Parameter | None = None

    @classmethod
    def of(cls, fn: Callable[..., Any], name: str | None = None) -> ToolSignature:
        """Read the signature of any callable; raise ConfigurationError for one that has none."""
        named = checks.name("name", name or getattr(fn, "__name__", None) or type(fn).__name__, "issue_refund")
        parameters, rest, placed = read_parameters(fn, named)
        required = tuple(each.name for each in parameters.values() if each.required)
        return cls(named, inspect.getdoc(fn) or "", parameters, rest, read_return(fn), required, placed)

    def read(self, arguments: object, *, may_lack: Collection[str] = (), program_values: ProgramValues | None = None) -> dict[str, Any]:
        """Return the effective arguments as plain JSON values; see `arguments`."""
        return self.arguments(arguments, may_lack=may_lack, program_values=program_values).plain

    def arguments(self, arguments: object, *, may_lack: Collection[str] = (), program_values: ProgramValues | None = None) -> Arguments:
        """Return the effective arguments, in the order of the signature; raise BadArguments.

        `arguments` is a mapping, or the JSON text of an object. Nothing is converted but a whole number where a float is asked for, and a
        default that JSON has is filled in, so that what is judged is what runs. Those of `may_lack` may be absent. `values` makes of the
        result what the tool is called with. With `program_values` they are a program's own: what JSON does not have, as a tuple, is read
        as what stands for it, and kept there beside the text of that.
        """
        exact = self._exactly(arguments)
        if exact is not None:
            return Arguments(exact, encode_canonical(exact), exact=True)
        with _ReadingOf(self):
            read = self._read(arguments, may_lack, program_values)
        return Arguments(read, encode_canonical(read))

    def _exactly(self, given: Any) -> dict[str, Any] | None:
        """Return arguments of which each is of the simple type that is asked for, as nearly always; None where one must look closer."""
        table = flat_copy({**given}) if type(given) is dict else None
        if table is None:
            return None
        read: dict[str, Any] = {}
        taken = 0
        for name, parameter in self.parameters.items():
            if name in table:
                value = table[name]
                taken += 1
            elif parameter.has_plain_default:
                value = parameter.default
            elif parameter.required:
                return None
            else:
                continue
            if type(value) is not parameter.exactly:
                return None
            read[name] = value or 0.0 if parameter.exactly is float else value  # -0.0 is read as 0.0
        if taken != len(table):
            return None
        return read if taken == len(read) else flat_copy(read)  # with defaults in it, at which nobody has looked

    def _read(self, arguments: object, may_lack: Collection[str], program_values: ProgramValues | None) -> dict[str, Any]:
        given = self._given(arguments)
        self._names(given, own=program_values is not None)
        read: dict[str, Any] = {}
        for parameter in self.parameters.values():
            if parameter.name in given:
                value = given[parameter.name]
                simple = type(value) is parameter.exactly and type(value) is not float and is_scalar(value)  # -0.0 is read as 0.0
                read[parameter.name] = value if simple else self._fit(parameter, parameter.name, value, program_values)
            elif parameter.has_plain_default:
                read[parameter.name] = plain(parameter.default)
            elif parameter.required and parameter.name not in may_lack:
                way_out = f"{self.name} needs {parameter.name!r} ({parameter.shown})."
                raise self._bad("missing_required_arg", parameter.name, way_out)
        for key in given:
            if self.placed is not None and key == self.placed.name:
                read[key] = self._fit_each(self.placed, given[key], program_values)
            elif key not in self.parameters and self.rest is not None:
                read[key] = self._fit(self.rest, key, given[key], program_values)
        self._all_plain(read)
        return read

    def is_whole(self, arguments: Mapping[str, Any]) -> bool:
        """Whether what `read` gave lacks nothing: read again it would be the same."""
        return arguments.keys() >= set(self.required)

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Make of what `read` gave the values that the tool is called with, by name: enum members, models, dates; raise BadArguments.

        Each call makes them anew, so a tool that changes its arguments changes nobody else's.
        """
        with _ReadingOf(self):
            return self._values(arguments)

    def _values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in arguments.items():
            if self.placed is not None and key == self.placed.name:
                made[key] = [self._made(self.placed, key, each) for each in value]
                continue
            parameter = self.parameters.get(key, self.rest)
            if parameter is None:
                raise self._bad("extra_tool_args", key, f"{self.name} takes no {checks.show(key)}.")
            made[key] = self._made(parameter, key, value)
        return made

    def read_result(self, value: Any) -> Any:
        """Return what the tool returned, untouched, if it is what the annotation says; raise BadResult."""
        if self.returns is not None and not (type(value) is self.returns.exactly and is_scalar(value)):
            try:
                with _ReadingOf(self):
                    self.returns.check(value)
            except UnfitError as error:
                raise BadResult(
                    self.name, f"{self.name} returned {type(value).__name__[:60]!r}, not {self.returns.shown}: {error}"
                ) from None
        return value

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments, as a model is told it; additional names are allowed only where the tool takes them."""
        rest = {} if self.rest is None else {"": self.rest}
        properties, shared = schemas({**self.parameters, **rest})
        further = properties.pop("", False)
        schema: dict[str, Any] = {
            "type": "object",
            "properties": properties,
            "required": list(self.required),
            "additionalProperties": further,
        }
        return schema | ({"$defs": shared} if shared else {})

    # -- what is given ----------------------------------------------------------------------------------------

    def _given(self, arguments: Any) -> dict[str, Any]:
        if type(arguments) is str:
            try:
                arguments = read_json(arguments)
            except NotJsonError as error:
                raise self._bad(error.code, None, f"The arguments of {self.name} {error}") from None
        if not isinstance(arguments, Mapping):
            raise self._bad("not_object", None, f"The arguments of {self.name} are no JSON object; give one, such as {{}}.")
        given: dict[Any, Any] = {**arguments}
        for key in given:
            if type(key) is not str:
                raise self._bad("extra_tool_args", None, f"{self.name} takes no argument named {checks.show(key)}, which is no text.")
        return given

    def _names(self, given: Mapping[str, Any], *, own: bool) -> None:
        """Refuse names that are none of the tool's, and say of one that merely looks like one what it looks like."""
        for key in given:
            if self.placed is not None and key == self.placed.name:
                if own:
                    continue
                raise self._bad("extra_tool_args", None, f"{self.name} takes no argument {key!r}: what its *{key} takes has no name.")
            if key in self.parameters or (self.rest is not None and _is_plain_name(key) and not self._looks_like(key)):
                continue
            like = self._looks_like(key) or checks.nearest(key, self.parameters)
            hint = f"; it takes {like!r}, which is another name" if like else ""
            listed = ", ".join(self.parameters) or "none"
            raise self._bad("extra_tool_args", None, f"{self.name} takes no argument {key[:60]!a}{hint}. Its arguments: {listed[:400]}.")

    def _looks_like(self, key: str) -> str | None:
        seen = _visible_form(key)
        return next((name for name in self.parameters if name != key and _visible_form(name) == seen), None)

    def _fit(self, parameter: Parameter, key: str, value: Any, program_values: ProgramValues | None = None) -> Any:
        try:
            stands = parameter.fit(value)
        except (UnfitError, NotPlainError) as error:
            if program_values is None:
                raise self._unfit(parameter, key, error) from None
        else:
            if program_values is not None and parameter.anything and not is_json_value(value):  # an enum's member
                program_values[key] = (value, canonical(stands))
            return stands
        try:
            stands = parameter.fit(json_for_program_value(value, anything=parameter.anything))
        except (UnfitError, NotPlainError) as error:
            raise self._unfit(parameter, key, error, way_out=_OR_NO_GATE.format(self.name)) from None
        program_values[key] = (value, canonical(stands))
        return stands

    def _fit_each(self, parameter: Parameter, values: Any, program_values: ProgramValues | None) -> list[Any]:
        """Read what `*args` was given, each value by its own."""
        own: ProgramValues = {}
        fitted: list[Any] = []
        for at, value in enumerate(values if type(values) in (list, tuple) else (values,)):
            fitted.append(self._fit(parameter, f"{parameter.name}[{at}]", value, own))
        if own and program_values is not None:
            program_values[parameter.name] = (values, canonical(fitted))
        return fitted

    def _made(self, parameter: Parameter, key: str, value: Any) -> Any:
        try:
            return parameter.made(plain(value))
        except (UnfitError, NotPlainError) as error:
            raise self._unfit(parameter, key, error) from None

    def _unfit(self, parameter: Parameter, key: str, error: UnfitError | NotPlainError, way_out: str = "") -> BadArguments:
        what = error.what if isinstance(error, NotPlainError) else str(error)
        code = error.code if error.code in _OWN_CODES or error.code == "extra_tool_args" else "bad_arg_type"
        must = "takes" if parameter.anything else "must be"
        said = f"{self.name}: {key} {must} {parameter.shown}, and {'it ' if isinstance(error, NotPlainError) else ''}{what}"
        return self._bad(code, key, f"{said[:600]}{way_out}")

    def _all_plain(self, read: dict[str, Any]) -> None:
        """Hold all of the arguments together to the bounds of one call."""
        try:
            plain(read)
        except NotPlainError as error:
            raise self._bad(error.code if error.code in _OWN_CODES else "bad_arg_type", None, f"{self.name}: {error}") from None

    def _bad(self, code: str, argument: str | None, message: str) -> BadArguments:
        return BadArguments(code, self.name, argument, message)


def is_being_read(signature: ToolSignature) -> bool:
    """Whether the running code is part of reading what this tool is called with, or gave."""
    reading = _reading.get()
    return bool(reading) and any(one.is_open and one.signature is signature for one in reading)


def _is_plain_name(key: str) -> bool:
    """Whether a further name is a plain one: ASCII, an identifier, and none of Python's own."""
    return key.isascii() and key.isidentifier() and not key.startswith("__")


def _visible_form(name: str) -> str:
    """Return what a name looks like: compatibility forms and marks undone, the invisible left out."""
    flat_copy = unicodedata.normalize("NFKD", name).casefold().translate(_LOOKS_LIKE)
    return "".join(char for char in flat_copy if unicodedata.category(char) not in _UNSEEN)


_UNSEEN: Final = frozenset({"Cf", "Cc", "Cs", "Mn", "Zs", "Pc"})
_LOOKS_LIKE: Final = str.maketrans("абвгдеіјкмопрсѕтухһԁԛԝαβγενικορτυχ", "abbrdeijkmonpcstyxhdqwabyevikoptux")
"""Letters that look like ASCII ones, for the hint in a message only: whatever is no name of the tool's is refused anyway."""
