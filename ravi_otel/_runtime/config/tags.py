"""Read tags: short texts put on spans and on the cost metric."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks

MOST_TAGS: Final = 8
TAG: Final = re.compile(r"[a-z][a-z0-9_.]{0,39}")


def check_tags(parameter: str, given: object) -> dict[str, str]:
    """Accept a few short texts by short keys, as `run(tags=...)` does."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f'{parameter}={checks.show(given)} must be a dict of short texts, such as {{"team": "search"}}.')
    tags: Mapping[Any, Any] = given  # pyright: ignore[reportUnknownVariableType]  # its keys and values are looked at below
    if len(tags) > MOST_TAGS:
        raise ConfigurationError(f"{parameter} has {len(tags)} keys: each is a metric's label, so at most {MOST_TAGS} are taken.")
    for key in tags:
        if not isinstance(key, str) or not TAG.fullmatch(key):
            raise ConfigurationError(
                f'{parameter} key {checks.show(key)} must be lower-case letters, digits, "_" or ".", at most 40, such as "team".'
            )
    return {key: checks.name(f"{parameter}.{key}", value, "search") for key, value in tags.items()}


def read_tags(pairs: Sequence[str], parameter: str = "--tag") -> dict[str, str]:
    """Read `team=search` pairs, as a command line gives them; a key that is there twice is an error."""
    tags: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"{parameter} {checks.show(pair)} has no '=': write {parameter} team=search.")
        if key in tags:
            raise ConfigurationError(
                f"{parameter} {checks.show(pair)} is there twice: {parameter} {checks.show(f'{key}={tags[key]}')} sets the same key."
            )
        tags[key] = value
    return check_tags(parameter, tags)
