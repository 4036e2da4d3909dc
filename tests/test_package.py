"""The front door: what it exports, what it says, what it costs to open."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ravi_otel

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ["_pricing", "hooks", "policy", "testing"]
"""The subpackages users import from that have a front door of their own."""

SLOW_OR_OPTIONAL = ["click", "genai_prices", "mcp", "openai", "opentelemetry.exporter", "opentelemetry.sdk", "pydantic", "rich", "uvicorn"]


def run_python(program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)


def documented(thing: object) -> bool:
    """Tell whether `thing` says itself what it is: a class by its own docstring, not one it inherits."""
    text = thing.__dict__.get("__doc__") if inspect.isclass(thing) else getattr(thing, "__doc__", None)
    return bool(text and text.strip())


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_all_is_sorted_complete_and_without_doubles(room):
    module = importlib.import_module(f"ravi_otel.{room}".rstrip("."))
    assert list(module.__all__) == sorted(set(module.__all__))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_front_door_lets_nothing_out_by_accident():
    strays = {
        name
        for name, value in vars(ravi_otel).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in ravi_otel.__all__
    }
    assert strays == set()


def test_every_public_name_is_documented():
    names = [name for name in ravi_otel.__all__ if name != "__version__"]
    assert [name for name in names if not documented(getattr(ravi_otel, name))] == []


def public_methods() -> list[tuple[str, str]]:
    classes = {name: value for name in ravi_otel.__all__ if inspect.isclass(value := getattr(ravi_otel, name))}
    return sorted(
        (name, attribute)
        for name, cls in classes.items()
        for attribute, value in vars(cls).items()
        if not attribute.startswith("_") and (inspect.isroutine(value) or isinstance(value, property))
    )


def test_every_public_method_is_documented():
    methods = {f"{name}.{method}": inspect.getattr_static(getattr(ravi_otel, name), method) for name, method in public_methods()}
    assert [name for name, method in methods.items() if not documented(method)] == []


@pytest.mark.parametrize("given", [ravi_otel.suspend_limits, ravi_otel.waiting, ravi_otel.Scope.wrap_up])
def test_the_type_of_a_block_that_a_public_call_gives_is_public(given):
    assert given.__annotations__["return"] in ravi_otel.__all__


def test_the_errors_of_the_front_door_are_those_of_the_errors_module():
    errors = {name for name in ravi_otel.__all__ if inspect.isclass(value := getattr(ravi_otel, name)) and issubclass(value, Exception)}
    assert {getattr(ravi_otel, name).__module__ for name in errors} == {"ravi_otel.errors"}


@pytest.fixture(scope="module")
def imported() -> set[str]:
    return set(run_python("from ravi_otel import *; import sys; print(*sorted(sys.modules))", "-W", "error").stdout.split())


@pytest.mark.parametrize("module", SLOW_OR_OPTIONAL)
def test_importing_the_package_does_not_import(module, imported):
    assert [name for name in imported if name == module or name.startswith(f"{module}.")] == []


def test_importing_the_package_loads_no_room():
    rooms = "name for name in sys.modules if name.split('.')[0] in ('ravi_otel', 'opentelemetry', 'wrapt')"
    program = f"import ravi_otel, sys; print(*sorted({rooms}))"
    assert run_python(program, "-W", "error").stdout.split() == ["ravi_otel", "ravi_otel._lazy", "ravi_otel._version"]


@pytest.mark.parametrize(("client", "readers"), [("openai", "openai"), ("anthropic", "anthropic"), ("groq", "openai")])
def test_the_readers_of_a_client_are_loaded_with_the_client_alone(client, readers):
    program = f"""
import sys
import ravi_otel
ravi_otel.instrument()
readers = "ravi_otel._instrumentation.formats.{readers}"
before = readers in sys.modules
import {client}
print(before, readers in sys.modules)
"""
    assert run_python(program, "-W", "error").stdout.split() == ["False", "True"]


def test_the_front_door_lists_every_name_before_any_is_used():
    assert set(ravi_otel.__all__) <= set(run_python("import ravi_otel; print(*dir(ravi_otel))").stdout.split())


def test_a_name_that_is_none_is_refused_as_in_any_module():
    with pytest.raises(AttributeError, match="module 'ravi_otel' has no attribute 'instrumnet'"):
        _ = ravi_otel.instrumnet


def test_importing_the_package_starts_no_thread_and_changes_nothing_global():
    program = """
import logging, signal, sys, threading
before = (threading.active_count(), logging.root.handlers[:], signal.getsignal(signal.SIGINT), sys.excepthook, threading.Thread.start)
import ravi_otel
after = (threading.active_count(), logging.root.handlers[:], signal.getsignal(signal.SIGINT), sys.excepthook, threading.Thread.start)
print(before == after)
"""
    assert run_python(program).stdout.strip() == "True"


def test_what_importing_costs_is_printed(capsys):
    clock = "import time; start = time.process_time(); {}; print((time.process_time() - start) * 1000)"
    for program in ("import ravi_otel", "import ravi_otel; ravi_otel.instrument()"):
        fastest = min(float(run_python(clock.format(program)).stdout) for _ in range(3))
        with capsys.disabled():
            print(f"\n{program}: {fastest:.0f} ms (best of 3)")
        assert fastest > 0


def test_the_package_is_marked_as_typed():
    assert (Path(ravi_otel.__file__).parent / "py.typed").is_file()


def test_the_changelog_has_a_place_for_the_next_line():
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_oldest_client_ci_tests_is_the_oldest_we_promise():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = next(dependency for dependency in project["dependencies"] if dependency.startswith("openai"))
    assert promised == "openai>=1.66,<4"
    assert "OLDEST_OPENAI=1.66.0" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_pythons_that_the_readme_and_the_package_name_are_those_that_the_tests_are_run_on():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = re.search(
        r"CPython (3\.\d+) with Redis 7 and on (3\.\d+) with Redis 8 by CI, and by `make pythons` on (3\.\d+) .*?; (3\.\d+),", readme
    )
    assert found is not None
    oldest, newest, other, between = found.groups()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if each.startswith("Programming Language :: Python :: 3.")]
    assert (sorted(named), project["requires-python"]) == (sorted([oldest, between, other, newest]), f">={oldest}")
    script = (ROOT / "scripts" / "pythons.sh").read_text(encoding="utf-8")
    assert f"{other} in trixie, {newest} in sid" in script
    assert "make pythons SUITES=sid" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_picture_of_the_errors_names_every_error():
    errors = importlib.import_module("ravi_otel.errors")
    raised = [name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)]
    assert [name for name in raised if name not in (errors.__doc__ or "")] == []
    assert len(raised) > 1


def test_every_error_that_a_docstring_says_is_raised_exists():
    defined, said = set(vars(builtins)), dict[str, str]()
    for path in (ROOT / "ravi_otel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined.add(node.name)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                said |= dict.fromkeys(re.findall(r"\b[Rr]aises? (?:an? |the )?`?([A-Z]\w+)", text), str(path.relative_to(ROOT)))
    assert len(said) > 20
    assert {name: path for name, path in said.items() if name not in defined} == {}
