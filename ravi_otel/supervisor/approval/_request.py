"""The question to a person and the answer: frozen arguments, who may approve them, and how they are edited.

An identity says how somebody was verified, with their name: `login:anna` is a user of the operating system, `sign-in:anna@acme.com` one
whom the page's proxy has signed in, and `link` is whoever has the link to one request. A name among `approvers` matches a login and a
sign-in of that name; a whole identity matches itself only, and `link` whoever has the link.
"""

from __future__ import annotations

import hashlib
import json
import operator
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps, loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, Literal, NoReturn, Protocol, cast, runtime_checkable

from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import Coloured, JsonObject, JsonValue
from ravi_otel.supervisor._json import canonical, plain

NO_TERMINAL: Final = "no_terminal"
CHANGED: Final = "arguments_changed"
NOT_AN_APPROVER: Final = "not_an_approver"
"""Comments of an answer that no person decided: no terminal to ask at, arguments changed meanwhile, not an approver."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A question to a person about one call; an approval is for exactly these arguments, frozen.

    `fingerprint` is the full SHA-256, 64 hex digits, over tool, canonical arguments, scope (run id and agent name) and policy version.
    `scope` is that scope as one text. Times are UTC epoch seconds; `expires_at` None never expires. With a `policy_version`,
    a store can compute the fingerprint again, and refuses a request that was changed on the way.

    `approvers` are the names of those who may decide it, None anybody; unless `requester_may_approve`, the run's user, `user_id`, may not
    approve it. `schema` is the JSON schema of the tool's arguments, None where there is none; `op_id` is the id of the tool call in the
    store, in the audit log and in events.
    """

    id: str
    tool: str
    arguments: JsonObject
    fingerprint: str
    scope: str
    reason: str
    requested_at: float
    expires_at: float | None = None
    agent_name: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    risk_score: float | None = None
    policy_version: str | None = None
    user_id: str | None = None
    approvers: tuple[str, ...] | None = None
    requester_may_approve: bool = True
    schema: JsonObject | None = field(default=None, compare=False)
    op_id: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """A person's answer: `who` they are, None if unknown; `comment` is their own words, or an identifier such as `expired`.

    `arguments` are the person's edited arguments, None if they changed nothing; edited ones are validated and reviewed again.
    `expires_at`, in UTC epoch seconds, is when an approval ends that was given to an earlier request, if that is sooner than the end of
    the current one. `identity` is who they are as the approver has verified it (see `approvers`); without one, `who` is trusted as the
    approver reports it.
    """

    approved: bool
    comment: str = ""
    who: str | None = None
    arguments: JsonObject | None = None
    expires_at: float | None = field(default=None, compare=False)
    identity: str | None = field(default=None, compare=False)


@runtime_checkable
class Approver(Protocol):
    """Something that asks a person, and waits for the answer.

    The gate declares the wait (working time stands still), binds the answer to the request's fingerprint, and uses it once.
    """

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Return the answer; past `expires_at` that is `approved=False, comment="expired"`."""
        ...

    def executed(self, request: ApprovalRequest, status: str) -> Coloured[None]:
        """Receive how the approved call ended: "ok", "error" or "cancelled" if it ran as it was approved.

        "refused" means that it never ran, and that the approval is still valid. "spent" means that the approval is void and was not used:
        its edit did not fit the tool or the rules, or something else ran in its place.
        """
        ...


MOST_SHOWN_CHARS: Final = 65_536
"""The most characters of arguments that a person can be shown."""
_MOST_READABLE: Final = 200
_MOST_READABLES: Final = 20
_MOST_WORDS: Final = 2_000


def freeze(arguments: JsonObject) -> str:
    """Return arguments as canonical JSON; raise ConfigurationError for more than a person can be shown."""
    text = canonical(copy_arguments(arguments))
    if len(text) > MOST_SHOWN_CHARS:
        raise ConfigurationError(
            f"the arguments are {len(text)} characters long, and a person is asked about at most {MOST_SHOWN_CHARS}: "
            "shorten them, or give the tool a reference to them."
        )
    return text


def read_arguments(text: str) -> dict[str, JsonValue]:
    """Return the arguments in a text, a JSON object without duplicate keys; raise ConfigurationError for anything else."""
    if len(text) > MOST_SHOWN_CHARS:
        raise ConfigurationError(f"arguments are longer than {MOST_SHOWN_CHARS} characters: shorten them.")
    return copy_arguments(_load_object(text))


def read_value(text: str) -> JsonValue:
    """Return one JSON value that a person wrote; what is no JSON is returned as text."""
    try:
        return cast("JsonValue", plain(loads(text, object_pairs_hook=_refuse_doubles, parse_constant=_refuse_constant)))
    except (ValueError, RecursionError) as error:
        if isinstance(error, RaviError):
            raise
        return text


def copy_arguments(arguments: object) -> dict[str, JsonValue]:
    """Return a copy of arguments in plain JSON types; raise ConfigurationError or NotPlainError for anything else."""
    if not isinstance(arguments, Mapping):
        raise ConfigurationError(f'arguments={checks.show(arguments)} must be a JSON object, such as {{"user_id": 42}}.')
    return cast("dict[str, JsonValue]", plain(cast("object", arguments)))


def sha256_of(*parts: str | None) -> str:
    """Return the SHA-256 of some texts, 64 hex digits."""
    return hashlib.sha256(dumps(parts).encode("ascii")).hexdigest()


def describe_arguments(arguments: JsonObject) -> list[str]:
    """Return arguments as lines for a terminal: JSON in ASCII only, every other character as its escape.

    Different arguments give different lines, and no character of theirs can move a cursor or pass for another. Lines that begin with
    `reads` follow, which only show how text with other characters reads.
    """
    known = copy_arguments(arguments)
    lines = dumps(known, indent=2, sort_keys=True, allow_nan=False).replace("\x7f", "\\u007f").split("\n")
    readings = [f"reads {escape(path)}: {readable(text)}" for path, text in _texts("", known) if not text.isascii()]
    more = len(readings) - _MOST_READABLES
    return lines + readings[:_MOST_READABLES] + ([f"reads: and {more} more"] if more > 0 else [])


def one_line(arguments: JsonObject, most: int) -> str:
    """Return arguments as one line for a list, cut to `most` characters."""
    text = canonical(copy_arguments(arguments)).replace("\x7f", "\\u007f")
    return text if len(text) <= most else f"{text[: most - 3]}..."


def readable(text: str, most: int = _MOST_READABLE) -> str:
    """Return a text as one line of visible characters, for reading only: different ones may come out equal."""
    kept = "".join(char if char == " " or unicodedata.category(char)[0] in "LNPS" else " " for char in text[: 4 * most])
    known = " ".join(kept.split())
    return known if len(known) <= most else f"{known[: most - 3]}..."


def check_words(parameter: str, text: object) -> str:
    """Return a person's own words; raise ConfigurationError unless they are text of at most 2,000 characters."""
    if not isinstance(text, str) or len(text) > _MOST_WORDS:
        raise ConfigurationError(f"{parameter}={checks.show(text)} must be text of at most {_MOST_WORDS} characters.")
    return text


def _load_object(text: str) -> object:
    try:
        return cast("object", loads(text, object_pairs_hook=_refuse_doubles, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f'arguments={checks.show(text)} is no JSON object; write one such as {{"user_id": 42}}.') from error


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known = dict(pairs)
    if len(known) != len(pairs):
        raise ConfigurationError("arguments name a key twice: write each once.")
    return known


def _refuse_constant(name: str) -> NoReturn:
    raise ConfigurationError(f"arguments hold {name}, which is no number of JSON: write a finite one.")


def _texts(path: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if not key.isascii():
                yield f"{path} (name)".strip(), key
            yield from _texts(f"{path}.{key}" if path else key, each)
    elif isinstance(value, Sequence):
        for at, each in enumerate(value):
            yield from _texts(f"{path}[{at}]", each)


def escape(text: str) -> str:
    """Return a name in ASCII only, cut if it is too long."""
    return dumps(text)[1:-1].replace("\x7f", "\\u007f")[:_MOST_WORDS]


LINK: Final = "link"
OTHERS: Final = "*"
"""The entry for every tool that is not named, and for an agent's final answer."""

MOST_APPROVERS: Final = 100
LINK_HOLDER: Final = "whoever has the link"
_LOGIN: Final = "login:"
_SIGN_IN: Final = "sign-in:"


def login_identity(name: str) -> str:
    """Return the identity of a user of the operating system."""
    return f"{_LOGIN}{name}"


def sign_in_identity(name: str) -> str:
    """Return the identity of one whom a trusted proxy has signed in."""
    return f"{_SIGN_IN}{name}"


def identity_name(identity: str) -> str:
    """Return the name of an identity, as it is shown."""
    if identity == LINK:
        return LINK_HOLDER
    return identity.partition(":")[2] or identity


@dataclass(frozen=True, slots=True)
class Approvers:
    """Who may approve the calls of each tool; anybody may for a tool that is not in `by_tool`."""

    by_tool: Mapping[str, tuple[str, ...]]
    requester_may_approve: bool = True

    @classmethod
    def read(cls, parameter: str, given: Any, *, requester_may_approve: bool = True) -> Approvers:
        """Return approvers from a list of names for all tools, or a mapping of tools to names; raise ConfigurationError."""
        if given is None:
            return cls({}, requester_may_approve)
        if not isinstance(given, Mapping):
            return cls({OTHERS: _read_names(parameter, given)}, requester_may_approve)
        by_tool: dict[str, tuple[str, ...]] = {}
        for tool, names in cast("Mapping[Any, Any]", given).items():  # type: ignore[redundant-cast]  # pyright knows nothing of it
            by_tool[checks.name(parameter, tool, "issue_refund")] = _read_names(f"{parameter}[{tool!r}]", names)
        return cls(by_tool, requester_may_approve)

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the tools that are named."""
        return tuple(tool for tool in self.by_tool if tool != OTHERS)

    def of(self, tool: str) -> tuple[str, ...] | None:
        """Return who may approve a call of a tool, None where anybody may."""
        return self.by_tool.get(tool, self.by_tool.get(OTHERS))


ANYBODY: Final = Approvers({})


def _read_names(parameter: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise ConfigurationError(f"{parameter}={checks.show(cast('object', given))} must be a list of names, such as ['anna', 'jo'].")
    names = tuple(sorted({checks.name(parameter, each, "anna") for each in cast("Collection[object]", given)}))
    if not names:
        raise ConfigurationError(
            f"{parameter} names nobody, so that nobody could ever approve: name somebody, or have a rule block the tool."
        )
    if len(names) > MOST_APPROVERS:
        raise ConfigurationError(f"{parameter} names {len(names)} people; name at most {MOST_APPROVERS}.")
    return names


def answer_refusal(request: ApprovalRequest, answer: ApprovalAnswer) -> str | None:
    """Return in one sentence why an answer does not count, None if it does.

    Only approvers decide. The requester may always reject. If they may not approve, whoever approves must be verified as another person.
    """
    if request.approvers is not None and not _is_named(request.approvers, answer):
        tool = readable(request.tool, 80)
        return f"{_who_answered(answer)} may not decide about {tool}: {list_names(request.approvers)} may."
    if request.requester_may_approve or not answer.approved:
        return None
    if request.user_id is None:
        return "Nobody knows who requested it, so nobody may approve it: give the run a user."
    name = _verified_name(answer)
    if name is None:
        return f"{_who_answered(answer)} may be the one who requested it, who may not approve it: somebody who is signed in must."
    if _fold(name) == _fold(request.user_id):
        return f"{_who_answered(answer)} requested it, and may not approve it: somebody else must."
    return None


def _is_named(names: tuple[str, ...], answer: ApprovalAnswer) -> bool:
    if answer.identity is None:
        return answer.who is not None and answer.who != LINK and answer.who in names
    if answer.identity == LINK:
        return LINK in names
    name = _verified_name(answer)
    if name is None or answer.identity in names:
        return name is not None
    return name != LINK and not name.startswith((_LOGIN, _SIGN_IN)) and name in names  # one may be called `login:anna` elsewhere


def _verified_name(answer: ApprovalAnswer) -> str | None:
    """Return the verified name of who answered, None without one."""
    if answer.identity is None:
        return answer.who
    known = answer.identity.startswith((_LOGIN, _SIGN_IN))
    return identity_name(answer.identity) if known else None


def _fold(name: str) -> str:
    return " ".join(name.casefold().split())


def _who_answered(answer: ApprovalAnswer) -> str:
    """Begin a sentence with who answered."""
    if answer.identity == LINK:
        return LINK_HOLDER.capitalize()
    said = answer.who if answer.identity is None else identity_name(answer.identity)
    return readable(said or "", 80) or "Somebody whom nobody named"


def list_names(names: tuple[str, ...]) -> str:
    """Write names as a part of a sentence."""
    shown = [readable(LINK_HOLDER if each == LINK else each, 60) for each in names[:5]]
    more = len(names) - len(shown)
    if more:
        shown.append(f"{more} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


FieldKind = Literal["text", "whole", "number", "flag", "choice", "json"]

_KINDS: Final[Mapping[str, FieldKind]] = {"string": "text", "integer": "whole", "number": "number", "boolean": "flag"}
_KIND_WORDS: Final = {
    "text": "text",
    "whole": "whole number",
    "number": "number",
    "flag": "true or false",
    "choice": "one of a few",
    "json": "JSON",
}
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": Sequence,
    "object": Mapping,
    "null": type(None),
}
_TYPE_WORDS: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS: Final[tuple[tuple[str, str, Callable[[float, float], bool]], ...]] = (
    ("minimum", "at least", operator.ge),
    ("maximum", "at most", operator.le),
    ("exclusiveMinimum", "more than", operator.gt),
    ("exclusiveMaximum", "less than", operator.lt),
)
_SIZES: Final = (("minLength", "maxLength", "characters"), ("minItems", "maxItems", "items"))
_DEEPEST: Final = 12
_MOST_CHOICES: Final = 100
_MOST_TEXT: Final = 300


@dataclass(frozen=True, slots=True)
class ArgumentField:
    """What one argument may be. `above` and `below` are bounds that it may not reach; `choices` are JSON values."""

    name: str
    kind: FieldKind
    required: bool = True
    nullable: bool = False
    choices: tuple[JsonValue, ...] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    shortest: int | None = None
    longest: int | None = None
    about: str = ""

    @property
    def word(self) -> str:
        """Name its type."""
        return _KIND_WORDS[self.kind]

    @property
    def says(self) -> str:
        """Say in a few words what it may be."""
        bounds = (("at least", self.least), ("more than", self.above), ("at most", self.most), ("less than", self.below))
        said = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
        if self.shortest or self.longest is not None:
            said.append(f"{self.shortest or 0} to {'any' if self.longest is None else self.longest} characters")
        words = [_KIND_WORDS[self.kind] + (" or null" if self.nullable else ""), *said, *([] if self.required else ["may be left out"])]
        return ", ".join(words)


def form_fields(schema: JsonObject | None) -> dict[str, ArgumentField]:
    """Return what each argument of a tool may be, by name; nothing without a schema that can be read."""
    properties = _table((schema or {}).get("properties"))
    return {name: _read_field(name, _table(each), _table(schema)) for name, each in properties.items()}


def _read_field(name: str, given: Mapping[str, Any], whole: Mapping[str, Any]) -> ArgumentField:
    known, nullable = _without_null(given, whole)
    required = name in _list(whole.get("required"))
    about = known.get("description") or given.get("description")
    text = about[:_MOST_TEXT] if isinstance(about, str) else ""
    choices = tuple(_list(known.get("enum")))
    if "const" in known:
        choices = (known["const"],)
    if choices and len(choices) <= _MOST_CHOICES:
        more = (None,) if nullable and None not in choices else ()
        return ArgumentField(name, "choice", required, nullable, (*choices, *more), about=text)
    kind = _KINDS.get(known["type"]) if isinstance(known.get("type"), str) else None
    if kind is None:
        return ArgumentField(name, "json", required, nullable, about=text)
    numbers = {key: known[key] for key, _, _ in _BOUNDS if _is_number(known.get(key))} if kind in ("whole", "number") else {}
    sizes = {key: known[key] for key in ("minLength", "maxLength") if type(known.get(key)) is int} if kind == "text" else {}
    return ArgumentField(
        name,
        kind,
        required,
        nullable,
        least=numbers.get("minimum"),
        most=numbers.get("maximum"),
        above=numbers.get("exclusiveMinimum"),
        below=numbers.get("exclusiveMaximum"),
        shortest=sizes.get("minLength"),
        longest=sizes.get("maxLength"),
        about=text,
    )


def _without_null(given: Mapping[str, Any], whole: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the schema behind references and "or null", and whether null may be given, too."""
    known, nullable = _resolve(given, whole), False
    for _ in range(_DEEPEST):
        several = _list(known.get("anyOf") or known.get("oneOf"))
        others = [each for each in several if _table(each).get("type") != "null"]
        if len(others) != 1:
            break
        nullable = nullable or len(others) < len(several)
        known = _resolve(_table(others[0]), whole)
    return known, nullable


def _resolve(given: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    known = given
    for _ in range(_DEEPEST):
        reference, both = known.get("$ref"), _list(known.get("allOf"))
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            known = _table(_table(whole.get("$defs")).get(reference.removeprefix("#/$defs/")))
        elif len(both) == 1:
            known = _table(both[0])
        else:
            break
    return known


def schema_flaw(schema: JsonObject, arguments: JsonObject) -> str | None:
    """Say in one sentence why a tool does not take these arguments; None where nothing is known to be wrong."""
    wrong = _value_flaw(_table(schema), arguments, _table(schema), "", 0)
    return None if wrong is None else f"{wrong}."


def _value_flaw(given: Mapping[str, Any], value: Any, whole: Mapping[str, Any], name: str, depth: int) -> str | None:
    if depth > _DEEPEST:
        return None
    known = _resolve(given, whole)
    several = _list(known.get("anyOf") or known.get("oneOf"))
    if several:
        found = [_value_flaw(_table(each), value, whole, name, depth + 1) for each in several]
        if None in found:
            return None
        real = [wrong for each, wrong in zip(several, found, strict=True) if _table(each).get("type") != "null"]
        return real[0] if len(real) == 1 else f"{name} is nothing that its tool takes"
    checks_of_all = (_type_flaw, _choice_flaw, _bound_flaw, _size_flaw)
    wrong = next((said for each in checks_of_all if (said := each(known, value, name or "the arguments")) is not None), None)
    if wrong is None and isinstance(value, Mapping):
        wrong = _object_flaw(known, cast("Mapping[str, Any]", value), whole, name, depth)
    elif wrong is None and isinstance(value, list) and isinstance(known.get("items"), Mapping):
        items = enumerate(_list(cast("object", value)))
        each_wrong = (_value_flaw(known["items"], each, whole, f"{name}[{at}]", depth + 1) for at, each in items)
        wrong = next((said for said in each_wrong if said is not None), None)
    return wrong


def _object_flaw(known: Mapping[str, Any], value: Mapping[str, Any], whole: Mapping[str, Any], name: str, depth: int) -> str | None:
    properties = _table(known.get("properties"))
    prefix = f"{name}." if name else ""
    for each in _list(known.get("required")):
        if each not in value:
            return f"{prefix}{each} is needed"
    for key, inner in value.items():
        if key in properties:
            wrong = _value_flaw(_table(properties[key]), inner, whole, f"{prefix}{key}", depth + 1)
            if wrong is not None:
                return wrong
        elif known.get("additionalProperties") is False:
            return f"{checks.show(key)} is no argument of its tool, which takes {', '.join(properties) or 'none'}"[:_MOST_TEXT]
    return None


def _type_flaw(known: Mapping[str, Any], value: Any, name: str) -> str | None:
    said = known.get("type")
    types = [said] if isinstance(said, str) else _list(said)
    if not types or any(each not in _TYPES for each in types):
        return None
    if any(_is_of_type(each, value) for each in types):
        return None
    return f"{name} must be {' or '.join(_TYPE_WORDS[each] for each in types)}"


def _is_of_type(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, str):
        return kind == "string"
    return isinstance(value, _TYPES[kind])


def _choice_flaw(known: Mapping[str, Any], value: Any, name: str) -> str | None:
    choices = [known["const"]] if "const" in known else _list(known.get("enum"))
    if not choices or any(type(each) is type(value) and each == value for each in choices):
        return None
    return f"{name} must be one of {', '.join(json.dumps(each) for each in choices[:20])}"[:_MOST_TEXT]


def _bound_flaw(known: Mapping[str, Any], value: Any, name: str) -> str | None:
    if not _is_number(value):
        return None
    for key, word, holds in _BOUNDS:
        if _is_number(known.get(key)) and not holds(value, known[key]):
            return f"{name} must be {word} {known[key]:g}"
    return None


def _size_flaw(known: Mapping[str, Any], value: Any, name: str) -> str | None:
    if not isinstance(value, (str, list)):
        return None
    least, most, what = _SIZES[isinstance(value, list)]
    size = len(cast("Sequence[Any]", value))
    if type(known.get(least)) is int and size < known[least]:
        return f"{name} must have at least {known[least]} {what}"
    if type(known.get(most)) is int and size > known[most]:
        return f"{name} must have at most {known[most]} {what}"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _table(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else []


def edit_arguments(arguments: JsonObject, changes: Iterable[str]) -> dict[str, JsonValue]:
    """Return the arguments with each `NAME=VALUE` in its place; `NAME=` leaves one out.

    A value is read as JSON (`500`, `"500"`, `true`, `["a"]`), except where the argument was a text: then only what is in quotes is JSON,
    and the rest is the text as it is. What is no JSON is text too. A new name is added. Raises ConfigurationError for one that looks like a
    mistyped one, for what is to be left out and is not there, and for a value of another kind than it was (null goes with all kinds).
    """
    fresh = copy_arguments(arguments)
    for each in changes:
        name, equals, written = each.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigurationError(f"{checks.show(each)} is no change; write NAME=VALUE, such as amount_usd=500.")
        known = name in fresh
        close = None if known else checks.nearest(name, fresh)
        if close is not None or not (known or written.strip()):
            hint = f"did you mean {close!r}?" if close else f"it has {', '.join(map(checks.show, list(fresh)[:20])) or 'none'}."
            raise ConfigurationError(f"{checks.show(name)} is no argument of this call; {hint}")
        if not written.strip():
            del fresh[name]
        else:
            fresh[name] = _check_kind(name, fresh.get(name), _read_new_value(written.strip(), fresh.get(name)))
    return fresh


def check_edit(request: ApprovalRequest, fresh: JsonObject) -> JsonObject:
    """Return what a person made of a request's arguments; ConfigurationError for what its tool does not take, as far as can be told."""
    if request.schema is None:
        return check_kinds(request.arguments, fresh)
    wrong = schema_flaw(request.schema, fresh)
    if wrong is not None:
        raise ConfigurationError(wrong)
    numbers = {name for name, each in form_fields(request.schema).items() if each.kind == "number"}
    return {name: _float_if_exact(value) if name in numbers else value for name, value in fresh.items()}


def _float_if_exact(value: JsonValue) -> JsonValue:
    """Write a whole number as the tool will read it, so that the fingerprint is of what would run."""
    exact = isinstance(value, int) and not isinstance(value, bool) and float(value) == value
    return float(cast("int", value)) if exact else value


def check_kinds(before: JsonObject, after: JsonObject) -> JsonObject:
    """Return what a person made of arguments; ConfigurationError where a value is of another kind than it was."""
    for name, value in after.items():
        _check_kind(name, before.get(name), value)
    return after


def _check_kind(name: str, before: JsonValue, after: JsonValue) -> JsonValue:
    was, is_now = _kind_in_words(before), _kind_in_words(after)
    if before is not None and after is not None and was != is_now:
        raise ConfigurationError(
            f"{checks.show(name)} was {was}, and {checks.show(after)} is {is_now}; give {was}, "
            "or all arguments with --args if its tool takes both."
        )
    return after


def _kind_in_words(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "a number"
    return "an object" if isinstance(value, Mapping) else "a list"


def _read_new_value(written: str, before: JsonValue) -> JsonValue:
    if isinstance(before, str) and not written.startswith('"'):
        return written
    return read_value(written)
