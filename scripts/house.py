"""Measure the house: what each room holds, and what one piece of work enters, beside the goals.

    make house        or        python scripts/house.py [--json] [--no-roads] [TREE]

TREE holds `ravi_otel/` and `tests/`; this repository by default. The words of the table:

* *statements* are those of the syntax tree without imports, definitions and docstrings, so that layout and prose neither cost nor gain.
* *shallow* modules have fewer than 80 lines and at least one function.
* *foreign* functions take somebody else's object: a module-level function whose first parameter is annotated with a mutable class that
  another module of the package defines. Frozen dataclasses, named tuples, enums, protocols, typed dicts and errors are data.
* *documented* is the share of public functions and classes (no underscore before the name, nor in a function or a private class) that have
  a docstring; overloads and setters are told by what they belong to.
* *private* modules have an underscore somewhere in their dotted name.
* A *circle* is a set of modules that import each other when they are loaded; *with types*, imports under TYPE_CHECKING count as well.

The roads are walked by `benchmarks/roads.py`. The same tree gives the same figures: nothing here is a time.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
CORE = ("policy", "pricing", "hooks", "enforcement", "telemetry", "runtime", "instrumentation", "(top)")
"""The rooms under the others, which the goals are about."""

GOALS: Mapping[str, tuple[str, str]] = {
    "lines": ("≤", "30,000"),
    "statements": ("≤", "14,000"),
    "modules": ("≤", "130"),
    "foreign": ("≤", "80"),
    "circles": ("", "0"),
    "circles with types": ("", "0"),
    "documented": ("", "100.0 %"),
}
SHALLOW = 80
_DATA = ("NamedTuple", "Enum", "StrEnum", "IntEnum", "Protocol", "TypedDict", "Error", "Exception", "Warning")
_STRUCTURE = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Graph = dict[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One module of the package, read."""

    name: str
    room: str
    is_package: bool
    lines: int
    tree: ast.Module

    @property
    def functions(self) -> list[Function]:
        """Return every function and method, nested ones too."""
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @property
    def statements(self) -> int:
        """Return how many statements do something."""
        return sum(
            isinstance(node, ast.stmt) and not isinstance(node, _STRUCTURE) and not _is_docstring(node) for node in ast.walk(self.tree)
        )

    @property
    def named(self) -> list[Function | ast.ClassDef]:
        """Return the functions and classes that others can name: no underscore before them, and in no function or private class."""
        return list(_reachable(self.tree.body))


def _reachable(body: Iterable[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """List public definitions; an overload and a setter are told by what they belong to."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _reachable([*node.body, *node.orelse])
        elif isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if not any(ast.unparse(each).endswith(("overload", ".setter")) for each in node.decorator_list):
                yield node
            if isinstance(node, ast.ClassDef):
                yield from _reachable(node.body)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# -- imports and circles ------------------------------------------------------------------------------------------


@dataclass
class Imports:
    """The modules of the package that a module imports: when it is loaded, inside functions, and for types alone."""

    loaded: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    typed: set[str] = field(default_factory=set)


def imports_of(module: Module, known: set[str]) -> Imports:
    """Return what a module imports of the `known` ones, but itself."""
    found = Imports()

    def visit(nodes: Iterable[ast.AST], into: set[str]) -> None:
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                visit(node.body, found.typed)
                visit(node.orelse, into)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                into.update(_targets(node, module, known))
            else:
                visit(ast.iter_child_nodes(node), found.inside if isinstance(node, Function | ast.Lambda) else into)

    visit(module.tree.body, found.loaded)
    for group in (found.loaded, found.inside, found.typed):
        group.intersection_update(known - {module.name})
    found.inside -= found.loaded
    return found


def _targets(node: ast.Import | ast.ImportFrom, module: Module, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parts = module.name.split(".")
        parts = parts[: len(parts) - node.level + module.is_package]
        base = ".".join([*parts, *([node.module] if node.module else [])])
    for alias in node.names:
        yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base


def circles(graph: Graph) -> list[list[str]]:
    """Return the sets of modules that reach each other, by Tarjan's algorithm; the largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            circle = stack[at:]
            del stack[at:]
            if len(circle) > 1:
                found.append(sorted(circle))

    sys.setrecursionlimit(10_000)
    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(found, key=lambda circle: (-len(circle), circle))


# -- other people's objects ---------------------------------------------------------------------------------------


def mutable_classes(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Return the modules that define a mutable class, by its name."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                frozen = any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)
                data = any(ast.unparse(base).split("[")[0].endswith(_DATA) for base in node.bases)
                if not frozen and not data:
                    found[node.name].add(module.name)
    return found


def foreign(module: Module, classes: Mapping[str, set[str]]) -> int:
    """Count the functions of a module whose first parameter is another module's mutable object."""
    firsts = [node.args.args[0].annotation for node in module.tree.body if isinstance(node, Function) and node.args.args]
    return sum(any(name in classes and module.name not in classes[name] for name in _class_names(each)) for each in firsts)


def _class_names(annotation: ast.expr | None) -> set[str]:
    """Return the classes that an annotation names: X, m.X, "X", X | None, Optional[X]; not those inside other generics."""
    match annotation:
        case ast.Constant(value=str(text)):
            try:
                return _class_names(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return set()
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
        case ast.BinOp(left=left, right=right):
            return _class_names(left) | _class_names(right)
        case ast.Subscript(value=value, slice=inner) if ast.unparse(value).endswith("Optional"):
            return _class_names(inner)
        case _:
            return set()


# -- the whole ----------------------------------------------------------------------------------------------------


def read_package(tree: Path) -> list[Module]:
    """Read every module of the package in a tree."""
    package = tree / "ravi_otel"
    if not package.is_dir():
        sys.exit(f"house.py: {tree} has no ravi_otel folder: name the root of a checkout.")
    modules: list[Module] = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(package).parts
        name = ".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__")
        room = parts[0].lstrip("_") if len(parts) > 1 else "(top)"
        modules.append(Module(name, room, path.name == "__init__.py", len(text.splitlines()), ast.parse(text)))
    return modules


def measure(tree: Path) -> dict[str, Any]:
    """Return the figures of all rooms, of the core and of the whole."""
    modules = read_package(tree)
    room_of = {module.name: module.room for module in modules}
    classes = mutable_classes(modules)
    imports = {module.name: imports_of(module, set(room_of)) for module in modules}
    knots = circles({name: each.loaded for name, each in imports.items()})
    typed = circles({name: each.loaded | each.typed for name, each in imports.items()})
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for module in modules:
        functions, named = module.functions, module.named
        rooms[module.room].update(
            {
                "lines": module.lines,
                "statements": module.statements,
                "modules": 1,
                "private": any(part.startswith("_") for part in module.name.split(".")),
                "shallow": module.lines < SHALLOW and bool(functions),
                "functions": len(functions),
                "foreign": foreign(module, classes),
                "inside": len(imports[module.name].inside),
                "public": len(named),
                "told": sum(ast.get_docstring(node) is not None for node in named),
            }
        )
    tests = sorted((tree / "tests").rglob("*.py"))
    sizes = sorted((node.end_lineno or node.lineno) - node.lineno + 1 for module in modules for node in module.functions)

    def summed(names: Iterable[str]) -> dict[str, Any]:
        inside = set(names)
        found: Counter[str] = Counter()
        for name in inside & set(rooms):
            found.update(rooms[name])
        touched = {
            kind: [circle for circle in those if any(room_of[name] in inside for name in circle)]
            for kind, those in (("circles", knots), ("circles with types", typed))
        }
        return {**_with_share(found), **{kind: len(those) for kind, those in touched.items()}}

    return {
        "rooms": {name: _with_share(count) for name, count in sorted(rooms.items(), key=lambda pair: -pair[1]["statements"])},
        "core": summed(CORE),
        "all": {
            **summed(rooms),
            "function p50": statistics.median(sizes),
            "function p90": sizes[int(len(sizes) * 0.9)],
            "test files": len(tests),
            "test lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests),
        },
        "circles": typed,
    }


def _with_share(count: Counter[str]) -> dict[str, Any]:
    found: dict[str, Any] = {key: count[key] for key in count if key not in ("public", "told")}
    return {**found, "documented": round(count["told"] / max(count["public"], 1), 4)}


def walked(tree: Path) -> dict[str, Any]:
    """Return what the roads enter in a tree, as `benchmarks/roads.py` of this repository counts it."""
    python = HERE / ".venv" / "bin" / "python"
    command = [str(python if python.is_file() else sys.executable), str(HERE / "benchmarks" / "roads.py"), "--json"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tree)})
    if ran.returncode:
        return {"problem": (ran.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


# -- printing it --------------------------------------------------------------------------------------------------

_COLUMNS = ("lines", "statements", "modules", "private", "shallow", "functions", "foreign", "inside", "documented")
_HEADS = {"inside": "imports inside functions"}


def _cell(key: str, value: Any) -> str:
    return f"{value:.1%}".replace("%", " %") if key == "documented" else f"{value:,}"


def as_text(found: Mapping[str, Any]) -> str:
    """Return the tables."""
    heads = ("room", *(_HEADS.get(column, column) for column in _COLUMNS))
    rows = [(name, *(_cell(key, room[key]) for key in _COLUMNS)) for name, room in found["rooms"].items()]
    rows += [(f"**{title}**", *(_cell(key, found[which][key]) for key in _COLUMNS)) for title, which in (("core", "core"), ("all", "all"))]
    lines = [*_table(heads, rows), "", f"The core is {', '.join(CORE)}.", ""]
    goals = [(name, _cell(name, found["core"][name]), f"{sign} {goal}".strip()) for name, (sign, goal) in GOALS.items()]
    lines += [*_table(("core", "now", "goal"), goals), ""]
    rest = ("circles", "circles with types", "function p50", "function p90", "test files", "test lines")
    lines += [*_table(("all", "now"), [(name, _cell(name, found["all"][name])) for name in rest]), ""]
    for circle in found["circles"]:
        lines.append(f"A circle of {len(circle)}: {', '.join(name.removeprefix('ravi_otel.') for name in circle)}.")
    return "\n".join(lines)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a table in Markdown, its columns padded so that it can be read as it is."""
    cells = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    lines = [f"| {' | '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])} |" for row in cells]
    rule = "|".join("-" * (width + 2) if at == 0 else f"{'-' * (width + 1)}:" for at, width in enumerate(widths))
    return [lines[0], f"|{rule}|", *lines[1:]]


def main() -> None:
    """Measure, and print tables or JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tree", nargs="?", type=Path, default=HERE, metavar="TREE")
    options.add_argument("--json", action="store_true")
    options.add_argument("--no-roads", action="store_true", help="leave out what a call, a tool and a spawn enter")
    asked = options.parse_args()
    found = measure(asked.tree.resolve())
    if not asked.no_roads:
        found["roads"] = walked(asked.tree.resolve())
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    print(as_text(found))
    if not asked.no_roads:
        print(f"\n{_roads_text(found['roads'])}")


def _roads_text(roads: Mapping[str, Any]) -> str:
    if "problem" in roads:
        return f"The roads were not walked: {roads['problem']}"
    rows: list[tuple[str, ...]] = []
    for road in roads.values():
        if "problem" in road:
            rows.append((road["title"], road["problem"], "", "", "", ""))
            continue
        files = "" if road["files_goal"] is None else f"≤ {road['files_goal']}"
        counted = (f"{road['entries']:,}", f"≤ {road['entries_goal']}", f"{road['functions']:,}", f"{road['files']:,}", files)
        rows.append((road["title"], *counted))
    heads = ("road", "functions of ours entered", "goal", "distinct", "files", "goal")
    return "\n".join(_table(heads, rows))


if __name__ == "__main__":
    main()
