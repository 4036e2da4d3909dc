"""Hold a tool's arguments to its own signature, strictly: what a model writes is what the tool was made for, or it is refused by name."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ravi_otel.errors import RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.hashing import NotJsonError, NotPlainError, canonical, flat, is_plain, plain, read_json, scalar, written
from ravi_otel.supervisor.parameters import Parameter, UnfitError, as_json, read_parameters, read_return, schemas

_OWN_CODES: Final = frozenset({"too_deep", "too_large", "half_character", "unknown_arg_spec"})
_OR_NO_GATE: Final = " Give plain values, or put no gate before it: instrument_tools(..., skip=[{!r}])."
_SPELLED_WITH_ARGUMENT: Final = frozenset({"missing_required_arg", "bad_arg_type", "unknown_arg_spec"})


_reading: Final[ContextVar[tuple[_Reading, ...]]] = ContextVar("ravi_otel_reading", default=())

Kept: TypeAlias = dict[str, tuple[Any, str]]
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
        """Say it for programs: `missing_required_arg:T:A`, `extra_tool_args:T`."""
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


class _Reading:
    """Be at work on what a tool is called with, or gave: a validator of the program's own may call whatever it likes meanwhile."""

    __slots__ = ("_token", "is_open", "signature")

    def __init__(self, signature: ToolSignature) -> None:
        self.signature = signature
        self.is_open = True
        self._token: Token[tuple[_Reading, ...]] | None = None

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
    """Be what a tool takes and gives, as its own signature says.

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
        """Read the signature of any callable; raises ConfigurationError for one that has none."""
        named = checks.name("name", name or getattr(fn, "__name__", None) or type(fn).__name__, "issue_refund")
        parameters, rest, placed = read_parameters(fn, named)
        required = tuple(each.name for each in parameters.values() if each.required)
        return cls(named, inspect.getdoc(fn) or "", parameters, rest, read_return(fn), required, placed)

    def read(self, arguments: object, *, may_lack: Collection[str] = (), kept: Kept | None = None) -> dict[str, Any]:
        """Return the effective arguments as plain JSON values; see `arguments`."""
        return self.arguments(arguments, may_lack=may_lack, kept=kept).plain

    def arguments(self, arguments: object, *, may_lack: Collection[str] = (), kept: Kept | None = None) -> Arguments:
        """Return the effective arguments, in the order of the signature; raise BadArguments.

        `arguments` is a mapping, or the JSON text of an object. Nothing is converted but a whole number where a float is asked for, and a
        default that JSON has is filled in, so that what is judged is what runs. Those of `may_lack` may be absent. `values` makes of the
        result what the tool is called with. With `kept` they are a program's own values: what JSON does not have, such as a tuple, is
        read as what stands for it, and kept there beside the text of that.
        """
        exact = self._exactly(arguments)
        if exact is not None:
            return Arguments(exact, written(exact), exact=True)
        with _Reading(self):
            read = self._read(arguments, may_lack, kept)
        return Arguments(read, written(read))

    def _exactly(self, given: Any) -> dict[str, Any] | None:
        """Return arguments of which each is of the simple type that is asked for, as nearly always; None where one must look closer."""
        table = flat({**given}) if type(given) is dict else None
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
        return read if taken == len(read) else flat(read)  # with defaults in it, at which nobody has looked

    def _read(self, arguments: object, may_lack: Collection[str], kept: Kept | None) -> dict[str, Any]:
        given = self._given(arguments)
        self._names(given, own=kept is not None)
        read: dict[str, Any] = {}
        for parameter in self.parameters.values():
            if parameter.name in given:
                value = given[parameter.name]
                simple = type(value) is parameter.exactly and type(value) is not float and scalar(value)  # -0.0 is read as 0.0
                read[parameter.name] = value if simple else self._fit(parameter, parameter.name, value, kept)
            elif parameter.has_plain_default:
                read[parameter.name] = plain(parameter.default)
            elif parameter.required and parameter.name not in may_lack:
                way_out = f"{self.name} needs {parameter.name!r} ({parameter.shown})."
                raise self._bad("missing_required_arg", parameter.name, way_out)
        for key in given:
            if self.placed is not None and key == self.placed.name:
                read[key] = self._fit_each(self.placed, given[key], kept)
            elif key not in self.parameters and self.rest is not None:
                read[key] = self._fit(self.rest, key, given[key], kept)
        self._all_plain(read)
        return read

    def is_whole(self, arguments: Mapping[str, Any]) -> bool:
        """Whether what `read` gave lacks nothing: read again it would be the same."""
        return arguments.keys() >= set(self.required)

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Make of what `read` gave the values that the tool is called with, by name: enum members, models, dates; raises BadArguments.

        Each call makes them anew, so a tool that changes its arguments changes nobody else's.
        """
        with _Reading(self):
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
        """Give back what the tool returned, untouched, if it is what the annotation says; raises BadResult."""
        if self.returns is not None and not (type(value) is self.returns.exactly and scalar(value)):
            try:
                with _Reading(self):
                    self.returns.check(value)
            except UnfitError as error:
                raise BadResult(
                    self.name, f"{self.name} returned {type(value).__name__[:60]!r}, not {self.returns.shown}: {error}"
                ) from None
        return value

    def json_schema(self) -> dict[str, Any]:
        """Give the JSON schema of the arguments, as a model is told it; additional names are allowed only where the tool takes them."""
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
            if key in self.parameters or (self.rest is not None and _free(key) and not self._looks_like(key)):
                continue
            like = self._looks_like(key) or checks.nearest(key, self.parameters)
            hint = f"; it takes {like!r}, which is another name" if like else ""
            listed = ", ".join(self.parameters) or "none"
            raise self._bad("extra_tool_args", None, f"{self.name} takes no argument {key[:60]!a}{hint}. Its arguments: {listed[:400]}.")

    def _looks_like(self, key: str) -> str | None:
        seen = _seen(key)
        return next((name for name in self.parameters if name != key and _seen(name) == seen), None)

    def _fit(self, parameter: Parameter, key: str, value: Any, kept: Kept | None = None) -> Any:
        try:
            stands = parameter.fit(value)
        except (UnfitError, NotPlainError) as error:
            if kept is None:
                raise self._unfit(parameter, key, error) from None
        else:
            if kept is not None and parameter.anything and not is_plain(value):  # a member of an enum of numbers, or of texts
                kept[key] = (value, canonical(stands))
            return stands
        try:
            stands = parameter.fit(as_json(value, anything=parameter.anything))
        except (UnfitError, NotPlainError) as error:
            raise self._unfit(parameter, key, error, way_out=_OR_NO_GATE.format(self.name)) from None
        kept[key] = (value, canonical(stands))
        return stands

    def _fit_each(self, parameter: Parameter, values: Any, kept: Kept | None) -> list[Any]:
        """Read what `*args` was given, each value by its own."""
        own: Kept = {}
        fitted: list[Any] = []
        for at, value in enumerate(values if type(values) in (list, tuple) else (values,)):
            fitted.append(self._fit(parameter, f"{parameter.name}[{at}]", value, own))
        if own and kept is not None:
            kept[parameter.name] = (values, canonical(fitted))
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


def is_read(signature: ToolSignature) -> bool:
    """Whether the running code is part of reading what this tool is called with, or gave."""
    reading = _reading.get()
    return bool(reading) and any(one.is_open and one.signature is signature for one in reading)


def _free(key: str) -> bool:
    """Tell that a further name is a plain one: ASCII, an identifier, and none of Python's own."""
    return key.isascii() and key.isidentifier() and not key.startswith("__")


def _seen(name: str) -> str:
    """Give what a name looks like: compatibility forms and marks undone, the invisible left out."""
    flat = unicodedata.normalize("NFKD", name).casefold().translate(_LOOKS_LIKE)
    return "".join(char for char in flat if unicodedata.category(char) not in _UNSEEN)


_UNSEEN: Final = frozenset({"Cf", "Cc", "Cs", "Mn", "Zs", "Pc"})
_LOOKS_LIKE: Final = str.maketrans("абвгдеіјкмопрсѕтухһԁԛԝαβγενικορτυχ", "abbrdeijkmonpcstyxhdqwabyevikoptux")
"""Letters that look like ASCII ones, for the hint in a message only: whatever is no name of the tool's is refused anyway."""
