"""The check of installed packages: ours, the clients, OpenTelemetry's, and others that make spans of model calls."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Final, NamedTuple

from ravi_otel._runtime.patching import figures, is_within
from ravi_otel._stack.doctor import Finding, Inputs, broken, left_out, odd, well
from ravi_otel._stack.doctor.telemetry import SIGNALS, Route
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


class _Requirement(NamedTuple):
    """What this package needs of another: versions such as `>=1.40,<2`, for which extra, "" for none."""

    name: str
    versions: str
    extra: str

    def finding(self, check: str) -> Finding:
        """Return the finding about the installed version."""
        found = _installed(self.name)
        if found is not None and is_within(found, self.versions):
            return well(check, f"{self.name} {found}")
        said = f"{self.name} is not installed" if found is None else f"{self.name} {found} is outside {self.versions}"
        return broken(check, said, f"Run: pip install '{self.name}{self.versions}'")


def examine(inputs: Inputs) -> Iterator[Finding]:
    """Yield findings about the packages that a program started here would have."""
    needed = _requirements()
    python = f"Python {platform.python_version()} ({platform.python_implementation()}, {platform.system()})"
    too_old = figures(platform.python_version()) < _LEAST_PYTHON
    yield (broken("packages.python", python, "Use Python 3.11 or newer.") if too_old else well("packages.python", python))
    if needed:
        yield well("packages.ravi-otel", f"ravi-otel {__version__}")
    else:
        yield odd(
            "packages.ravi-otel",
            f"ravi-otel {__version__} is not installed as a package: what it needs cannot be compared",
            "Install it with pip, so that opentelemetry-instrument finds it too.",
        )
    known = {each.name: each for each in reversed(needed)}
    yield from _clients(known)
    yield from _opentelemetry(known, inputs)
    yield from _needed(needed)
    yield from _other_instrumentations()
    yield from _extras(needed)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[_Requirement]:
    try:
        found = [match for line in metadata.requires(_OURS) or [] if (match := _REQUIREMENT.fullmatch(line.strip())) is not None]
    except metadata.PackageNotFoundError:
        return []
    read = [(each[1].lower(), each[2].strip(), _EXTRA.search(each[3] or "")) for each in found]
    return [_Requirement(name, versions, extra[1] if extra else "") for name, versions, extra in read]


def _clients(known: Mapping[str, _Requirement]) -> Iterator[Finding]:
    needed = known.get("openai") or _Requirement("openai", "", "")
    found, way_out = _installed("openai"), f"Run: pip install 'openai{needed.versions}'"
    if found is None:
        yield odd("packages.openai", "openai is not installed: no call of it can be seen", way_out)
    elif not is_within(found, needed.versions):
        yield broken("packages.openai", f"openai {found} is outside {needed.versions}, which we wrap", way_out)
    else:
        yield well("packages.openai", f"openai {found} is wrapped ({needed.versions or 'any version'})")
    for name in _SISTERS:
        if (version := _installed(name)) is not None:
            yield well(f"packages.{name}", f"{name} {version} is wrapped too")


def _opentelemetry(known: Mapping[str, _Requirement], inputs: Inputs) -> Iterator[Finding]:
    api, sdk = _installed(_API), _installed(_SDK)
    for check, name in (("packages.api", _API), ("packages.sdk", _SDK)):
        yield (known.get(name) or _Requirement(name, "", "")).finding(check)
    if api and sdk and api != sdk:
        said = f"{_API} {api} and {_SDK} {sdk} are of two releases, and each SDK needs its own API"
        yield broken("packages.opentelemetry", said, f"Run: pip install '{_API}=={sdk}'")
    for protocol in dict.fromkeys(Route.of(inputs, signal).protocol for signal in SIGNALS):
        if (name := _EXPORTERS.get(protocol, "")) != "":
            yield _exporter(known.get(name) or _Requirement(name, "", ""), protocol, sdk)


def _exporter(needed: _Requirement, protocol: str, sdk: str | None) -> Finding:
    name, found = needed.name, _installed(needed.name)
    if found is None:
        said = f"{name} is not installed, and the protocol is {protocol}: nothing can be exported"
        return broken("packages.exporter", said, f"Run: pip install 'ravi-otel{'[grpc]' if protocol == 'grpc' else ''}'")
    if sdk and is_within(found, needed.versions) and figures(found)[:2] != figures(sdk)[:2]:
        said = f"{name} {found} is of another release than {_SDK} {sdk}"
        return odd("packages.exporter", said, f"Run: pip install '{name}~={sdk}'")
    return needed.finding("packages.exporter")


def _needed(requirements: Sequence[_Requirement]) -> Iterator[Finding]:
    """Yield findings about the other packages we need; all that are well make one finding."""
    told = {"openai", _API, _SDK, *_EXPORTERS.values()}
    found = [each.finding("packages.needed") for each in requirements if not each.extra and each.name not in told]
    yield from (each for each in found if each.state != "well")
    if fine := [each.said for each in found if each.state == "well"]:
        yield well("packages.needed", ", ".join(fine))


def _other_instrumentations() -> Iterator[Finding]:
    """Yield findings about other instrumentations of the same clients: each would make a second span of a call."""
    for name in _HANDLED:
        if (version := _installed(name)) is not None:
            said = f"{name} {version} is here: where it makes a call's span we make none, and count and limit the call all the same"
            yield well("packages.others", said)
    for name in _UNKNOWN:
        if (version := _installed(name)) is not None:
            said = f"{name} {version} is here: where it instruments the client too, a call may have a second span"
            yield odd("packages.others", said, "Switch its instrumentation of the client off, or read its spans beside ours.")


def _extras(requirements: Sequence[_Requirement]) -> Iterator[Finding]:
    absent: list[str] = []
    for extra in sorted({each.extra for each in requirements} - {""}):
        wanted = [each for each in requirements if each.extra == extra]
        if missing := [each.name for each in wanted if _installed(each.name) is None]:
            absent.append(f"{extra} ({', '.join(missing)})")
            continue
        yield from (bad for each in wanted if (bad := each.finding("packages.extras")).state != "well")
        yield well("packages.extras", f"extra {extra}: {', '.join(f'{each.name} {_installed(each.name)}' for each in wanted)}")
    if absent:
        said = f"extras not installed: {'; '.join(absent)}"
        yield left_out("packages.extras", said, "Where you want one, run: pip install 'ravi-otel[NAME]'")
