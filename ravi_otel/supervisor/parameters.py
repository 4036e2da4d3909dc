"""Read what one parameter takes from its annotation, and hold a value to it so that nothing is converted or lost on the way.

Of a program that calls its own functions the JSON that stands for its values is found, and nothing is read that can be read once only.
"""

from __future__ import annotations

import collections
import collections.abc
import collections.abc as collections_abc
import datetime as dt
import decimal
import fractions
import functools
import inspect
import pathlib
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from enum import Enum
from json import dumps, loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, cast

import pydantic
import typing_extensions

from ravi_otel.errors import ConfigurationError, RaviError, ToolDeniedError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.hashing import MOST_DEPTH, MOST_VALUES, NotPlainError, canonical, plain, scalar


def _kind(value: object) -> Any:
    return type(value)


_EMPTY: Final[dict[str, str]] = {}
_ONCE: Final = ("__next__", "__anext__", "__await__")
_LISTS: Final[frozenset[Any]] = frozenset(
    {list, tuple, range, collections.deque, _kind(_EMPTY.keys()), _kind(_EMPTY.values()), _kind(_EMPTY.items())}
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


def as_json(value: object, *, anything: bool) -> Any:
    """Give the JSON value that stands for a program's own: a list for a tuple, a set, a range or a view of a dict.

    With `anything`, for a parameter that takes whatever it is given, also text for a date, a Decimal and its like. What it is given as
    is not changed. Raises NotPlainError for what has nothing that stands for it, and for anything that can be read only once.
    """
    if reads_once(value):
        if any(hasattr(_kind(value), name) for name in _ONCE):
            raise NotPlainError("not_json", "can be read only once, which would leave nothing for the tool; give a list.")
        raise NotPlainError(
            "not_json", f"is a {_kind(value).__name__[:60]} with what can be read only once, or with more than is read, in it."
        )
    return plain(_Stand(anything=anything).of(value, 0))


class _Stand:
    def __init__(self, *, anything: bool) -> None:
        self._anything = anything
        self._left = MOST_VALUES

    def of(self, value: Any, depth: int) -> Any:
        """Give what stands for one value."""
        self._left -= 1
        if self._left < 0:
            raise NotPlainError("too_large", f"is beyond the {MOST_VALUES} values that are read; give less.")
        if depth > MOST_DEPTH:
            raise NotPlainError("too_deep", f"is nested deeper than {MOST_DEPTH} levels; give it flat.")
        kind = _kind(value)
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


def _pairs(table: Any) -> Any:
    """Read a dict itself, whatever a class derived from it would say."""
    return cast("Any", dict).items(table)


def reads_once(value: object) -> bool:
    """Tell that something in a value is an iterator, a generator or something to await: looking at it would use it up, or never end.

    Of what is too large to be looked through it is said too.
    """
    return _once(value, 0, [MOST_VALUES])


def _once(value: Any, depth: int, left: list[int]) -> bool:
    kind = _kind(value)
    left[0] -= 1
    if left[0] < 0 or any(hasattr(kind, name) for name in _ONCE):
        return True
    if kind is str or kind is bytes or depth > MOST_DEPTH or isinstance(value, (type, types.ModuleType, types.FunctionType, Enum)):
        return False
    if issubclass(kind, dict):
        return any(_once(each, depth + 1, left) for pair in _pairs(value) for each in pair)
    if issubclass(kind, (list, tuple, set, frozenset, collections.deque)):
        return any(_once(each, depth + 1, left) for each in list(cast("Iterable[Any]", value))[: left[0] + 1])
    held = getattr(value, "__dict__", None)
    return isinstance(held, dict) and any(_once(each, depth + 1, left) for each in list(cast("dict[str, Any]", held).values()))


def poses(value: Any, depth: int) -> bool:
    """Tell that something in a program's own value poses as a plain one: a subclass of text, of a number or of a container."""
    kind = cast("Any", type(value))
    if depth > MOST_DEPTH:
        return True
    if kind is dict:
        return any(poses(each, depth + 1) for pair in value.items() for each in pair)
    if kind is list or kind is tuple:
        return any(poses(each, depth + 1) for each in value)
    own = issubclass(kind, Enum) or (issubclass(kind, tuple) and hasattr(cast("Any", kind), "_fields"))  # read by their annotation
    return issubclass(kind, _PLAIN_KINDS) and kind not in (*_PLAIN_KINDS, bool) and not own


# -- annotations ----------------------------------------------------------------------------------------------------


def listed(hint: Any) -> Any:
    """Write an annotation with a list for `Iterable`: pydantic would give the tool an iterator, which only one can read."""
    if hint is collections_abc.Iterable or hint is typing.Iterable:
        return list
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is collections_abc.Iterable:
        return list[listed(args[0])]  # type: ignore[misc]  # it is made while the program runs
    if origin is typing.Annotated:
        return typing.Annotated[(listed(args[0]), *args[1:])]
    return hint


def is_lazy(schema: Any, depth: int = 0) -> bool:
    """Tell that a pydantic schema reads something bit by bit."""
    if depth > MOST_DEPTH:
        return False
    if isinstance(schema, Mapping):
        known = cast("Mapping[str, Any]", schema)
        return known.get("type") == "generator" or any(is_lazy(each, depth + 1) for each in known.values())
    return isinstance(schema, (list, tuple)) and any(is_lazy(each, depth + 1) for each in cast("list[Any]", schema))


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
    """Be one parameter: `shown` is its type in words, `adapter` what checks it, None where nothing can.

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
        """Tell that its default can be filled in, shown and judged."""
        return self.default is not _MISSING

    @property
    def can_be_given(self) -> bool:
        """Tell that there may be a value that fits: a function, a class or an object has nothing in JSON that stands for it."""
        if self.adapter is None:
            return False
        schema = cast("Any", self.adapter.core_schema)
        return schema["type"] not in _NO_JSON and schema.get("schema", {}).get("cls") is not type

    def fit(self, value: object) -> Any:
        """Give the plain value that stands for `value`; raises UnfitError or NotPlainError.

        What it is made into must be written as it was given: a key that would be dropped, a number or a truth value that would become
        another, and a type that hides what is in it are refused.
        """
        if self.exactly is not None and scalar(value):
            taken = self._taken(value)
            if taken is not None:
                return taken
        adapter = self._known()
        given = self._given(adapter, value)
        made = _made(adapter, given)
        effective = _settled(given, _written(adapter, made))
        again = _made(adapter, effective)
        if canonical(_settled(effective, _written(adapter, again))) != canonical(effective):
            raise UnfitError("bad_arg_type", "it is read as something else each time.")
        if not _same(made, again):
            raise UnfitError("unknown_arg_spec", "its type hides or changes what it is given, so nobody could judge it.")
        return effective

    def made(self, value: Any) -> Any:
        """Make of a plain value what the tool is given; raises UnfitError."""
        if self.exactly is not None and type(value) is self.exactly and scalar(value):
            return value
        return _made(self._known(), value)

    def check(self, value: Any) -> None:
        """Hold a Python value, as a tool returns it, to the annotation; raises UnfitError."""
        if self.adapter is None:
            return
        try:
            self.adapter.validate_python(value, strict=True)
        except Exception as error:  # noqa: BLE001 - a validator of the program's own may raise anything; the value is not what was said
            raise UnfitError("bad_arg_type", _first(error)) from None

    def _taken(self, value: Any) -> Any:
        """Give a scalar that is what is asked for, and a whole number as the float it is exactly; None for any other."""
        kind = _type(value)
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
            if error.code != "not_json" or poses(value, 0):
                raise
        if reads_once(value):
            raise UnfitError("bad_arg_type", "it can be read only once, which would leave nothing for the tool; give a list.")
        try:
            made = adapter.validate_python(value, strict=True)
        except Exception as error:  # noqa: BLE001 - as in `check`
            raise UnfitError("bad_arg_type", _first(error)) from None
        given = plain(_written(adapter, made))
        if not _same(made, _made(adapter, given)):
            raise UnfitError("bad_arg_type", "it would be another value once it was written as JSON.")
        return given


# -- reading and writing a value ----------------------------------------------------------------------------------


def _made(adapter: pydantic.TypeAdapter[Any], value: Any) -> Any:
    try:
        return adapter.validate_json(dumps(value), strict=True)
    except Exception as error:  # noqa: BLE001 - a validator of the program's own may raise anything; nothing is let through then
        raise UnfitError("bad_arg_type", _first(error)) from None


def _written(adapter: pydantic.TypeAdapter[Any], made: Any) -> Any:
    try:
        return loads(adapter.dump_json(made, by_alias=True, warnings="error").decode())
    except Exception as error:  # noqa: BLE001 - as above: what cannot be written cannot be judged
        raise UnfitError("unknown_arg_spec", f"it cannot be written as JSON: {_first(error)}") from None


def _first(error: Exception) -> str:
    """Say the first thing that is wrong, without the value, which is the caller's to show or not."""
    if isinstance(error, pydantic.ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])[:_MOST_SHOWN]
        said = f"{_sentence(first['msg'][:_MOST_SHOWN])}{f' (at {where!a})' if where else ''}"
    elif isinstance(error, ToolDeniedError):  # a validator called a tool, and it is said why that was refused
        said = f"its validation failed: {error}"
    else:
        said = type(error).__name__
    return f"{said.rstrip('.')}."


def _sentence(said: str) -> str:
    """Say what pydantic says of an "Input" as the end of a sentence about an argument."""
    return f"it{said.removeprefix('Input')}" if said.startswith("Input ") else f"{said[:1].lower()}{said[1:]}"


def _settled(given: Any, written: Any) -> Any:
    """Give what is judged and run: what was given, with what a nested default adds; raises UnfitError where they are not the same."""
    kind, other = _type(given), _type(written)
    if kind is dict and other is dict:
        return _settled_table(given, written)
    if kind is list and other is list:
        return _settled_list(given, written)
    if kind is str and other is str:
        return written
    if kind is int or kind is float:
        return _settled_number(given, written)
    if kind is other and given == written:
        return given
    raise UnfitError("bad_arg_type", f"it would be read as {type(written).__name__}.")


def _settled_table(given: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    lost = next((key for key in given if key not in written), None)
    if lost is not None:
        raise UnfitError("extra_tool_args", f"it has no {lost[:_MOST_SHOWN]!a}.")
    return {key: _settled(given[key], each) if key in given else each for key, each in written.items()}


def _settled_list(given: list[Any], written: list[Any]) -> list[Any]:
    if len(given) != len(written):
        raise UnfitError("bad_arg_type", "an item would be lost; give each once.")
    ranked = {_rank(each): each for each in written}
    ranks = [_rank(each) for each in given]
    if ranks != [_rank(each) for each in written] and all(rank in ranked for rank in ranks):  # a set is written in an order of its own
        return [_settled(each, ranked[rank]) for each, rank in zip(given, ranks, strict=True)]
    return [_settled(one, other) for one, other in zip(given, written, strict=True)]


def _rank(value: Any) -> str:
    return canonical(float(value) if type(value) is int else value)


def _settled_number(given: float, written: Any) -> Any:
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


def _same(made: Any, again: Any) -> bool:
    try:
        return bool(made == again) or (type(made) is type(again) and cast("Any", type(made).__eq__) is object.__eq__)
    except Exception:  # noqa: BLE001 - a stranger's __eq__ may raise anything; then nobody can tell
        return False


def _type(value: object) -> Any:
    return type(value)


# -- reading a signature ------------------------------------------------------------------------------------------


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
        known, hint = _hint(fn, each.annotation)
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
    known, hint = _hint(fn, annotation)
    if not known or annotation is inspect.Signature.empty:
        return None
    origin = typing.get_origin(hint)
    if origin in _ONE_AWAITED:
        hint = typing.get_args(hint)[-1]
    elif origin in _LAZY or hint in _LAZY or hint in _ONE_AWAITED or isinstance(hint, typing.TypeVar):
        return None
    exactly = _simple(hint)
    return Parameter("return", _shown(hint), required=True, adapter=_adapter(hint, arbitrary=True), exactly=exactly)


def _parameter(name: str, known: bool, hint: Any, default: Any = inspect.Parameter.empty) -> Parameter:
    required = default is inspect.Parameter.empty
    exactly = _simple(hint) if known else None
    shown = _shown(hint) if known else "of its own type"
    adapter = _adapter(listed(hint)) if known else None
    if adapter is not None and is_lazy(adapter.core_schema):
        adapter = None
    bare = Parameter(name, shown, required, adapter, exactly=exactly, anything=known and hint in (Any, object))
    if required:
        return bare
    try:
        return replace(bare, default=bare.fit(default))
    except (UnfitError, NotPlainError):
        return bare  # a default that JSON does not have stays the tool's own


def _simple(hint: Any) -> type | None:
    """Return bool, int, float or str where a hint is just that."""
    return next((each for each in _EXACTLY if each is hint), None)


def _unpacked(kind: Any) -> Iterator[tuple[str, Parameter]]:
    for name, (hint, required) in _keys(kind).items():
        yield name, Parameter(name, _shown(hint), required, _adapter(hint))


def _keys(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Give the type of each key of a TypedDict, and whether it must be there: its own set of them is wrong where annotations are text."""
    made: dict[str, tuple[Any, bool]] = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        origin = typing.get_origin(hint)
        required = origin is not typing.NotRequired and (origin is typing.Required or name in kind.__required_keys__)
        made[name] = (typing.get_args(hint)[0] if origin in _MARKS else hint, required)
    return made


def _hint(fn: Callable[..., Any], annotation: Any) -> tuple[bool, Any]:
    """Give the type that an annotation means, text or not, and whether that could be told."""
    if annotation is inspect.Parameter.empty:
        return True, Any
    carrier: Any = lambda: None  # noqa: E731 - only there to have annotations
    carrier.__annotations__ = {"it": annotation}
    try:
        return True, typing.get_type_hints(carrier, globalns=_globals(fn), include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - an annotation is an expression of the program's, and may raise anything
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
    config = pydantic.ConfigDict(arbitrary_types_allowed=True) if arbitrary else None
    try:
        return pydantic.TypeAdapter(_known_to_pydantic(hint))
    except Exception:  # noqa: BLE001 - a type's own hooks may raise anything; it is then one that cannot be checked
        return None if config is None else _adapter_of_any_type(hint, config)


def _adapter_of_any_type(hint: Any, config: pydantic.ConfigDict) -> pydantic.TypeAdapter[Any] | None:
    try:
        return pydantic.TypeAdapter(hint, config=config)
    except Exception:  # noqa: BLE001 - as above
        return None


def _known_to_pydantic(hint: Any) -> Any:
    """Spell a type as pydantic knows it: `object` as anything, and typing's own TypedDict, which it takes from Python 3.12 on, anew."""
    if hint is object:
        return Any
    if typing.is_typeddict(hint) and sys.version_info < (3, 12):
        made: Any = typing_extensions.TypedDict
        return made(hint.__name__, _fields(hint), total=True)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if not args or origin in _OPAQUE:
        return hint
    known = tuple(map(_known_to_pydantic, args[:1] if origin is typing.Annotated else args))
    if origin is typing.Annotated:
        return typing.Annotated[(known[0], *args[1:])]
    if origin is types.UnionType or known == args:
        return hint if known == args else functools.reduce(_either, known)
    return origin[known]


def _either(one: Any, other: Any) -> Any:
    return one | other


def _fields(kind: Any) -> dict[str, Any]:
    keys = {name: (_known_to_pydantic(hint), required) for name, (hint, required) in _keys(kind).items()}
    return {name: hint if required else typing_extensions.NotRequired[hint] for name, (hint, required) in keys.items()}


def _shown(hint: Any) -> str:
    if hint is Any or hint is object:
        return "any JSON value"
    text = inspect.formatannotation(hint)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def schemas(parameters: Mapping[str, Parameter]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the JSON schema of each, and the definitions they share; one that cannot be checked allows nothing."""
    known = [(name, "validation", each.adapter) for name, each in parameters.items() if each.adapter is not None]
    made, shared = pydantic.TypeAdapter.json_schemas(cast("Any", known), ref_template="#/$defs/{model}")
    properties: dict[str, Any] = {}
    for name, each in parameters.items():
        properties[name] = {"not": {}} if each.adapter is None else dict(made[cast("Any", (name, "validation"))])
        if each.has_plain_default:
            properties[name]["default"] = plain(each.default)
    return properties, cast("dict[str, Any]", shared.get("$defs", {}))
