"""Read a TOML or YAML file into plain values, whatever is in it: bounded in bytes, lines, depth and number of values."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from ravi_otel import _extras
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.grammar import MAX_SPEC

MOST_BYTES: Final = 1 << 20
MOST_LINE: Final = 8_192
MOST_DOTS: Final = 256
"""Most dots in a line: reading a dotted key takes time that grows with their square."""
MOST_DEPTH: Final = 16
MOST_VALUES: Final = 20_000

_MOST_SAID: Final = 200
_LARGEST: Final = 2**63
_FORMATS: Final = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
_YAML: Final = "tag:yaml.org,2002:"
_TEXTS: Final = frozenset({f"{_YAML}str", f"{_YAML}timestamp"})
_PLAIN: Final = frozenset({f"{_YAML}int", f"{_YAML}float", f"{_YAML}bool", f"{_YAML}null"})


Spot: TypeAlias = tuple[str | int, ...]
"""Where in a document: `("profiles", "ci", "limits", 0)`."""


def dotted(spot: Spot) -> str:
    """Write a spot as people do: `profiles.ci.limits[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in spot).removeprefix(".")
    return text if text.isprintable() else ascii(text)


@dataclass(frozen=True, slots=True)
class Document:
    """Be a file's content as plain values.

    `shown` is the file as the user named it. `lines` says on which lines of a YAML file things stand.
    """

    shown: str
    content: dict[str, Any]
    lines: Mapping[Spot, int] = field(default_factory=dict[Spot, int])

    @property
    def is_toml(self) -> bool:
        """Tell in which language it is written."""
        return self.shown.lower().endswith(".toml")

    def at(self, spot: Spot) -> str:
        """Say where an error's sentence begins that names the key itself: `policy.yaml:7`, or the file alone."""
        line = self.lines.get(spot)
        return self.shown if line is None else f"{self.shown}:{line}"

    def place(self, spot: Spot) -> str:
        """Say where something stands: `policy.yaml:7`, or `policy.toml limits[2]`."""
        return self.at(spot) if spot in self.lines else f"{self.shown} {_short(dotted(spot))}"


def load_document(path: Path) -> Document:
    """Read a file by its ending; raises ConfigurationError, one sentence, for anything that cannot be used."""
    shown = str(path) if str(path).isprintable() else ascii(str(path))
    form = _FORMATS.get(path.suffix.lower())
    if form is None:
        raise ConfigurationError(f"policy file {shown} has the ending {checks.show(path.suffix)}: name it .toml, .yaml or .yml.")
    text = _text(path, shown)
    document = _toml(shown, text) if form == "toml" else _yaml(shown, text)
    found = _first_flaw(document.content)
    if found is not None:
        raise ConfigurationError(f"{shown}: {' '.join(found)}.")
    return document


# -- bytes --------------------------------------------------------------------------------------------------------


def _text(path: Path, shown: str) -> str:
    try:
        raw = _bytes(path)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationError(f"policy file {shown} cannot be read: {said}. Name a file of limits, such as policy.toml.") from None
    if len(raw) > MOST_BYTES:
        raise ConfigurationError(f"policy file {shown} is larger than {MOST_BYTES} bytes; split it, or name another one.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"policy file {shown} is not UTF-8 text (at byte {error.start}): save it as UTF-8.") from None
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MOST_LINE or line.count(".") > MOST_DOTS:
            raise ConfigurationError(
                f"{shown}:{number} is longer than {MOST_LINE} characters or has more than {MOST_DOTS} dots; write one limit a line."
            )
    return text


def _bytes(path: Path) -> bytes:
    """Give the bytes of a regular file; one that is none, such as a pipe nobody writes to, is not waited for."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "it is no regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(MOST_BYTES + 1)
    finally:
        os.close(handle)


# -- TOML ---------------------------------------------------------------------------------------------------------


def _toml(shown: str, text: str) -> Document:
    try:
        content = _extras.load("tomllib").loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"policy file {shown} is no TOML that can be read: {_said(error)}.") from None
    return Document(shown, content)


# -- YAML ---------------------------------------------------------------------------------------------------------


def _yaml(shown: str, text: str) -> Document:
    yaml = _extras.load("yaml")
    try:
        flaw = next(_yaml_bombs(yaml, text), None)
        if flaw is not None:
            raise ConfigurationError(f"{shown}:{flaw}.")
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        builder = _Builder(yaml, loader, shown)
        content: Any = {} if root is None else builder.value(root, ())
    except yaml.YAMLError as error:
        raise ConfigurationError(f"policy file {shown} is no YAML that can be read: {_said(error)}.") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"policy file {shown} holds {checks.show(content)}, not keys such as limits; write `limits:` and a list.")
    return Document(shown, cast("dict[str, Any]", content), builder.lines)


def _yaml_bombs(yaml: Any, text: str) -> Iterator[str]:
    """Look over the events, which are made one at a time, for what would take for ever to build."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            yield f"{line} has the alias *{event.anchor}: write the value itself"
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_SPEC:
            yield f"{line} has a text longer than {MAX_SPEC} characters: shorten it"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            yield f"{line} is nested deeper than {MOST_DEPTH} levels: write it flat"
        if count > MOST_VALUES:
            yield f"{line} is where the file has more than {MOST_VALUES} values: split it"


class _Builder:
    """Build plain values, and note their lines; keys are the text that stands there, and none may stand there twice."""

    def __init__(self, yaml: Any, loader: Any, shown: str) -> None:
        self._yaml = yaml
        self._loader = loader
        self._shown = shown
        self.lines: dict[Spot, int] = {}

    def value(self, node: Any, spot: Spot) -> Any:
        """Build what stands at `spot`."""
        yaml = self._yaml
        line = self.lines.setdefault(spot, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_YAML}seq":
            return [self.value(each, (*spot, index)) for index, each in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_YAML}map":
            return self._table(node, spot)
        if isinstance(node, yaml.ScalarNode) and node.tag in _TEXTS:
            return node.value
        if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN:
            try:
                return self._loader.construct_object(node)
            except (ValueError, LookupError):
                pass  # a number or a truth value by its tag only, or one of too many digits
        raise ConfigurationError(
            f"{self._shown}:{line} holds a {checks.show(node.tag.removeprefix(_YAML))} that is no plain value: write text or a number."
        )

    def _table(self, node: Any, spot: Spot) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, each in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, self._yaml.ScalarNode) or key.value in made:
                what = (
                    f"the key {checks.show(key.value)} twice: keep one"
                    if isinstance(key, self._yaml.ScalarNode)
                    else "a key that is no text"
                )
                raise ConfigurationError(f"{self._shown}:{line} has {what}.")
            self.lines[*spot, key.value] = line
            made[key.value] = self.value(each, (*spot, key.value))
        return made


# -- values -------------------------------------------------------------------------------------------------------


def _said(error: Exception) -> str:
    """Give what a parser says as one short line, and for what is not its own words ours."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if type(error) is ValueError:
        return "a number in it has too many digits"
    mark = getattr(error, "problem_mark", None)
    words = [getattr(error, "context", None), getattr(error, "problem", None)]
    said = str(error) if mark is None else f"{' '.join(filter(None, words))} (at line {mark.line + 1}, column {mark.column + 1})"
    text = "".join(char if char.isprintable() else "?" for char in " ".join(said.split())).rstrip(".")
    return text if len(text) <= _MOST_SAID else f"{text[: _MOST_SAID - 1]}…"


def _first_flaw(content: dict[str, Any]) -> tuple[str, str] | None:
    """Name the first place that holds what no key of ours can take, or where there is too much."""
    left: list[tuple[str, object, int]] = [("", content, 0)]
    seen = 0
    while left:
        at, value, depth = left.pop()
        seen += 1
        inside = _inside(at, value)
        flaw = _flaw(value) if inside is None else None
        if depth > MOST_DEPTH:
            flaw = f"is nested deeper than {MOST_DEPTH} levels: write it flat"
        if seen + len(left) + len(inside or ()) > MOST_VALUES:
            at, flaw = "the file", f"has more than {MOST_VALUES} values: split it"
        if flaw is not None:
            return _short(at), flaw
        left += [(place, each, depth + 1) for place, each in reversed(inside or ())]
    return None


def _inside(at: str, value: object) -> list[tuple[str, object]] | None:
    """Give what a table or a list holds, each with its place, and None for anything else."""
    at = at[:_MOST_SAID]
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        return [(f"{at}.{key}" if at else key, each) for key, each in table.items()]
    if isinstance(value, list):
        return [(f"{at}[{index}]", each) for index, each in enumerate(cast("list[object]", value))]
    return None


def _flaw(value: object) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return f"is longer than {MAX_SPEC} characters: shorten it" if len(value) > MAX_SPEC else None
    if isinstance(value, int):
        return "is too large a number: leave the limit out to allow as much as that" if abs(value) > _LARGEST else None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}, which is no amount: give a number"
    return f"is {checks.show(str(value))}, a date or time: write it as text in quotes"


def _short(at: str) -> str:
    kept = at if at.isprintable() else checks.show(at)
    return kept if len(kept) <= _MOST_SAID else f"{kept[: _MOST_SAID - 1]}…"
