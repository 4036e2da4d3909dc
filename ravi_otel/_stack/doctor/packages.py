"""Look at the packages that are installed: ours, the clients, OpenTelemetry's, and what else makes spans of model calls."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from ravi_otel._runtime.patching import figures, is_within
from ravi_otel._stack.doctor.finding import Asked, Finding, broken, left_out, odd, well
from ravi_otel._stack.doctor.targets import SIGNALS, protocol_of
from ravi_otel._version import __version__

_OURS: Final = "ravi-otel"
_API, _SDK = "opentelemetry-api", "opentelemetry-sdk"
_EXPORTERS: Final = {"http/protobuf": "opentelemetry-exporter-otlp-proto-http", "grpc": "opentelemetry-exporter-otlp-proto-grpc"}
_LEAST_PYTHON: Final = (3, 11)
_SISTERS: Final = ("anthropic", "groq")
_HANDLED: Final = (
    "opentelemetry-instrumentation-openai",
    "opentelemetry-instrumentation-openai-v2",
    "opentelemetry-instrumentation-anthropic",
    "opentelemetry-instrumentation-groq",
    "opentelemetry-instrumentation-genai-openai",
    "opentelemetry-instrumentation-genai-anthropic",
    "openinference-instrumentation-openai",
    "openinference-instrumentation-anthropic",
    "openinference-instrumentation-groq",
    "logfire",
)
_UNKNOWN: Final = ("langfuse", "langsmith", "traceloop-sdk", "openlit", "helicone", "agentops", "ddtrace", "arize-phoenix")
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;\s*(.*))?")
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


@dataclass(frozen=True, slots=True)
class Requirement:
    """Be what this package needs of another: versions such as `>=1.40,<2`, by which extra, "" for none."""

    name: str
    versions: str
    extra: str


def examine(asked: Asked) -> Iterator[Finding]:
    """Look at the packages that a program here would have."""
    yield _python()
    needed = _requirements()
    yield from _ours(needed)
    yield from _clients(needed)
    yield from _opentelemetry(needed, asked)
    yield from _plain(needed)
    yield from _others()
    yield from _extras(needed)


def installed(name: str) -> str | None:
    """Give the version of a distribution; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[Requirement]:
    try:
        lines = metadata.requires(_OURS) or []
    except metadata.PackageNotFoundError:
        return []
    found = [_REQUIREMENT.fullmatch(line.strip()) for line in lines]
    read = [(each[1].lower(), each[2].strip(), _EXTRA.search(each[3] or "")) for each in found if each is not None]
    return [Requirement(name, versions, extra[1] if extra else "") for name, versions, extra in read]


def _python() -> Finding:
    version = platform.python_version()
    said = f"Python {version} ({platform.python_implementation()}, {platform.system()})"
    if figures(version) < _LEAST_PYTHON:
        return broken("packages.python", said, "Use Python 3.11 or newer.")
    return well("packages.python", said)


def _ours(needed: Sequence[Requirement]) -> Iterator[Finding]:
    said = f"ravi-otel {__version__}"
    if needed:
        yield well("packages.ravi-otel", said)
    else:
        yield odd(
            "packages.ravi-otel",
            f"{said} is not installed as a package: what it needs cannot be compared",
            "Install it with pip, so that opentelemetry-instrument finds it too.",
        )


def _clients(needed: Sequence[Requirement]) -> Iterator[Finding]:
    versions = _versions(needed, "openai")
    found = installed("openai")
    if found is None:
        yield odd("packages.openai", "openai is not installed: no call of it can be seen", f"Run: pip install 'openai{versions}'")
    elif not is_within(found, versions):
        yield broken("packages.openai", f"openai {found} is outside {versions}, which we wrap", f"Run: pip install 'openai{versions}'")
    else:
        yield well("packages.openai", f"openai {found} is wrapped ({versions or 'any version'})")
    for name in _SISTERS:
        if (version := installed(name)) is not None:
            yield well(f"packages.{name}", f"{name} {version} is wrapped too")


def _versions(needed: Sequence[Requirement], name: str) -> str:
    return next((each.versions for each in needed if each.name == name), "")


def _opentelemetry(needed: Sequence[Requirement], asked: Asked) -> Iterator[Finding]:
    api, sdk = installed(_API), installed(_SDK)
    yield _ranged("packages.api", _API, api, _versions(needed, _API))
    yield _ranged("packages.sdk", _SDK, sdk, _versions(needed, _SDK))
    if api and sdk and api != sdk:
        yield broken(
            "packages.opentelemetry",
            f"{_API} {api} and {_SDK} {sdk} are of two releases, and each SDK needs its own API",
            f"Run: pip install '{_API}=={sdk}'",
        )
    for protocol in dict.fromkeys(protocol_of(asked, signal) for signal in SIGNALS):
        if (exporter := _EXPORTERS.get(protocol)) is not None:
            yield _exporter(exporter, protocol, sdk, _versions(needed, exporter))


def _exporter(name: str, protocol: str, sdk: str | None, versions: str) -> Finding:
    found = installed(name)
    if found is None:
        extra = "[grpc]" if protocol == "grpc" else ""
        return broken(
            "packages.exporter",
            f"{name} is not installed, and the protocol is {protocol}: nothing can be exported",
            f"Run: pip install 'ravi-otel{extra}'",
        )
    if sdk and is_within(found, versions) and figures(found)[:2] != figures(sdk)[:2]:
        return odd("packages.exporter", f"{name} {found} is of another release than {_SDK} {sdk}", f"Run: pip install '{name}~={sdk}'")
    return _ranged("packages.exporter", name, found, versions)


def _ranged(check: str, name: str, found: str | None, versions: str) -> Finding:
    if found is None:
        return broken(check, f"{name} is not installed", f"Run: pip install '{name}{versions}'")
    if not is_within(found, versions):
        return broken(check, f"{name} {found} is outside {versions}", f"Run: pip install '{name}{versions}'")
    return well(check, f"{name} {found}")


def _plain(needed: Sequence[Requirement]) -> Iterator[Finding]:
    """Look at the rest of what we need; those that are well are one finding."""
    told = {"openai", _API, _SDK, *_EXPORTERS.values()}
    rest = [each for each in needed if not each.extra and each.name not in told]
    found = [_ranged("packages.needed", each.name, installed(each.name), each.versions) for each in rest]
    yield from (each for each in found if each.state != "well")
    if fine := [each.said for each in found if each.state == "well"]:
        yield well("packages.needed", ", ".join(fine))


def _others() -> Iterator[Finding]:
    """Look for other instrumentations of the same clients: each would make a second span of a call."""
    for name in _HANDLED:
        if (version := installed(name)) is not None:
            yield well(
                "packages.others",
                f"{name} {version} is here: where it makes a call's span we make none, and count and limit the call all the same",
            )
    for name in _UNKNOWN:
        if (version := installed(name)) is not None:
            yield odd(
                "packages.others",
                f"{name} {version} is here: where it instruments the client too, a call may have a second span",
                "Switch its instrumentation of the client off, or read its spans beside ours.",
            )


def _extras(needed: Sequence[Requirement]) -> Iterator[Finding]:
    absent: list[str] = []
    for extra in sorted({each.extra for each in needed} - {""}):
        wanted = [each for each in needed if each.extra == extra]
        found = [(each, installed(each.name)) for each in wanted]
        missing = [each.name for each, version in found if version is None]
        if missing:
            absent.append(f"{extra} ({', '.join(missing)})")
            continue
        yield from (
            bad for each, version in found if (bad := _ranged("packages.extras", each.name, version, each.versions)).state != "well"
        )
        yield well("packages.extras", f"extra {extra}: {', '.join(f'{each.name} {version}' for each, version in found)}")
    if absent:
        yield left_out(
            "packages.extras", f"extras not installed: {'; '.join(absent)}", "Where you want one, run: pip install 'ravi-otel[NAME]'"
        )
