"""Hold a policy file to the JSON schema that editors know, after the reader that has the better sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from ravi_otel import _extras
from ravi_otel._runtime.config.document import Document, Spot
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks

SCHEMA: Final = Path(__file__).with_name("policy.schema.json")
"""The schema of a policy file, JSON Schema 2020-12; `ravi-otel limits --schema` prints it."""


def check_schema(document: Document) -> None:
    """Raise ConfigurationError, one sentence, for a document the schema does not allow."""
    try:
        _validator()(document.content)
    except ValueError as error:
        spot = _spot(document, getattr(error, "path", [])[1:])
        what = f"{'.'.join(map(str, spot)) or 'it'} is {checks.show(getattr(error, 'value', None))}"
        raise ConfigurationError(
            f"{document.at(spot)}: {what}, which is not what the schema of a policy file has there; `ravi-otel limits --schema` prints it."
        ) from None


@cache
def _validator() -> Callable[[Any], Any]:
    validate: Callable[[Any], Any] = _extras.load("fastjsonschema").compile(json.loads(SCHEMA.read_bytes()), use_default=False)
    return validate


def _spot(document: Document, path: list[str]) -> Spot:
    """Follow the validator's path as far as the document goes; a name with a dot in it comes in pieces, and ends it there."""
    spot: list[str | int] = []
    here: object = document.content
    for step in path:
        if isinstance(here, list) and step.isdecimal():
            here = cast("list[object]", here)[int(step)]
            spot.append(int(step))
        elif isinstance(here, dict) and step in here:
            here = cast("dict[str, object]", here)[step]
            spot.append(step)
        else:
            break
    return tuple(spot)
