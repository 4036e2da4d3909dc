"""The house keeps its shape: layers, sizes, names, reasons."""

from __future__ import annotations

import ast
import builtins
import functools
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ravi_otel"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_MODULE = 900
LONGEST_FUNCTION = 60
DUMPING_GROUNDS = {"utils", "helpers", "common", "base", "core"}
SDK_ROOMS = (
    "_telemetry/providers.py",
    "_telemetry/export/",
    "_telemetry/context_processor.py",
    "_local/",
    "testing/",
    "_stack/doctor/telemetry.py",
)

EXEMPTION = re.compile(r"#\s*(noqa|type:\s*ignore|pyright:\s*ignore|pragma:\s*no cover)")
REASONED = re.compile(
    r"#\s*(noqa: [A-Z]+\d+(, ?[A-Z]+\d+)* - \S|type: ignore\[[a-z-]+(, ?[a-z-]+)*\]  # \S"
    r"|pyright: ignore\[\w+(, ?\w+)*\]  # \S|pragma: no cover - \S)"
)
MACHINE_PATH = re.compile(r"(?<![\w./~}>*-])/(?:root|work|home|Users|private|mnt)/\w|(?<![\w./~}>*-])/(?:tmp|opt)/\w")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def our_files() -> list[Path]:
    """Give every text file of the project: what git tracks, or would; without git, what a source archive holds."""
    try:
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        kept = [".ci", "benchmarks", "docs", "examples", "ravi_otel", "scripts", "tests"]
        inside = [relative(path) for room in kept for path in (ROOT / room).rglob("*")]
        listed = [*inside, *(path.name for path in ROOT.iterdir())]
    return sorted(path for name in listed if name and (path := ROOT / name).is_file() and "__pycache__" not in path.parts)


def python_files() -> list[Path]:
    return [path for path in our_files() if path.suffix == ".py"]


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """List everything that a module is made of."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module", autouse=True)
def _trees_are_let_go() -> Iterator[None]:
    yield
    nodes_of.cache_clear()


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Give line and dotted name of every import, and of every module `_extras.load("…")` is asked for."""
    for node in nodes_of(path):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)
            case ast.Call(func=ast.Name(id="load") | ast.Attribute(attr="load"), args=[ast.Constant(value=str(module))]):
                yield node.lineno, module


def comments_of(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if "#" in line:
            yield number, line


def test_the_contracts_of_the_layers_are_kept(tmp_path: Path):
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-c", program, "--no-logo", "--no-cache"]
    linted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_policy_and_errors_import_the_standard_library_and_each_other_only():
    strangers = [
        f"{relative(path)}:{line} {name}"
        for path in [*(PACKAGE / "policy").rglob("*.py"), PACKAGE / "errors.py"]
        for line, name in imports_of(path)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not name.startswith(("ravi_otel.policy", "ravi_otel.errors", "ravi_otel._lazy"))
    ]
    assert strangers == []


def test_only_a_few_rooms_know_the_sdk():
    strangers = [
        f"{relative(path)}:{line} {name}"
        for path in MODULES
        if not path.relative_to(PACKAGE).as_posix().startswith(SDK_ROOMS)
        for line, name in imports_of(path)
        if name.startswith("opentelemetry.sdk")
    ]
    assert strangers == []


def test_nothing_is_imported_inside_a_function_but_through_load():
    inside = [
        f"{relative(path)}:{node.lineno}"
        for path in MODULES
        for function in nodes_of(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert inside == []


def test_every_error_that_a_docstring_has_raised_exists():
    known: set[str] = {word for path in MODULES for word in re.findall(r"class (\w+)", path.read_text(encoding="utf-8"))} | set(
        dir(builtins)
    )
    unknown = [
        f"{relative(path)}: {name}"
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for name in re.findall(r"\b[Rr]aises? `?([A-Z]\w+)", ast.get_docstring(node) or "")
        if name not in known
    ]
    assert unknown == []


def test_every_module_fits_in_one_reading():
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_every_function_fits_on_one_screen():
    long = {
        f"{relative(path)}:{node.lineno} {node.name}": length
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    }
    assert long == {}


MAPS = [path for path in MODULES if path.name == "__init__.py" and "Where what is:" in path.read_text(encoding="utf-8")]
"""The rooms that say in which module what is."""


@pytest.mark.parametrize("path", MAPS, ids=lambda path: path.parent.name)
def test_a_room_says_of_no_module_where_it_is_that_is_gone(path):
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    there = {found.stem for found in path.parent.rglob("*.py")} | {found.name for found in path.parent.iterdir() if found.is_dir()}
    assert set(re.findall(r"`([a-z_]+)/?`", said)) - there == set()


def test_no_module_is_named_for_being_a_dumping_ground():
    names = {relative(path) for path in MODULES if {path.stem.strip("_"), path.parent.name} & DUMPING_GROUNDS}
    assert names == set()


@pytest.mark.parametrize(
    ("line", "reasoned"),
    [
        ("x = 1  # noqa: E501 - a table", True),
        ("x = 1  # noqa: E501, PLR0913 - a table", True),
        ("x = 1  # type: ignore[attr-defined]  # openai has no stub for it", True),
        ("x = 1  # pyright: ignore[reportUnknownMemberType]  # the same", True),
        ("x = 1  # noqa: E501", False),
        ("x = 1  # noqa", False),
        ("x = 1  # type: ignore", False),
        ("x = 1  # type: ignore[misc]", False),
        ("x = 1  # pyright: ignore[reportPrivateUsage]", False),
    ],
)
def test_a_reason_is_told_from_no_reason(line, reasoned):
    assert EXEMPTION.search(line)
    assert bool(REASONED.search(line)) is reasoned


def test_every_exemption_carries_its_reason_on_the_same_line():
    bare = [
        f"{relative(path)}:{number} {line.strip()}"
        for path in python_files()
        if path != Path(__file__).resolve()
        for number, line in comments_of(path)
        if EXEMPTION.search(line) and not REASONED.search(line)
    ]
    assert bare == []


def test_every_ignored_rule_says_why():
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    start = lines.index("ignore = [") + 1
    ignored = lines[start : lines.index("]", start)]
    assert [line for line in ignored if "  # " not in line] == []


def test_no_file_names_a_path_of_one_machine():
    found = [
        f"{relative(path)}:{number} {line.strip()[:120]}"
        for path in our_files()
        if path.suffix not in {".png", ".svg", ".whl"} and path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


def test_the_lock_names_public_packages_only():
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    sources = [package["source"] for package in lock["package"] if package["name"] != "ravi-otel"]
    assert {source.get("registry") for source in sources} == {"https://pypi.org/simple"}
    files = [file["url"] for package in lock["package"] for file in [package.get("sdist"), *package.get("wheels", [])] if file]
    assert {url.split("/")[2] for url in files} == {"files.pythonhosted.org"}


def test_no_two_modules_beside_tests_have_one_name():
    names = [
        path.name
        for path in python_files()
        if path.is_relative_to(ROOT / "tests") and not path.is_relative_to(ROOT / "tests/launch/programs")
    ]
    beside = [name for name in names if not name.startswith(("test_", "conftest", "__init__"))]
    assert sorted({name for name in beside if beside.count(name) > 1}) == []
