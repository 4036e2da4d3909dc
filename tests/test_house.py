"""`make house` counts what it says it counts, and walks every road."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

FILES = {
    "__init__.py": '"""Be a package."""\n',
    "_private.py": "from ravi_otel import errors\n\nclass Tree:\n    def grow(self): ...\n",
    "errors.py": '"""Say what went wrong."""\n\nclass OwnError(Exception):\n    """Be ours."""\n',
    "policy/__init__.py": "",
    "policy/one.py": "from __future__ import annotations\nfrom ravi_otel.policy.two import Limit\n\ndef fits(limit: Limit) -> bool:\n"
    '    """Fit."""\n    total = 1\n    return total > 0\n',
    "policy/two.py": "from typing import TYPE_CHECKING\nfrom dataclasses import dataclass\n\nif TYPE_CHECKING:\n"
    "    from ravi_otel.policy import one\n\n@dataclass(frozen=True)\nclass Limit:\n    value: int\n",
    "_enforcement/__init__.py": "",
    "_enforcement/plan.py": "from ravi_otel._private import Tree\n\ndef cut(tree: 'Tree | None', error: OwnError): ...\n"
    "def plant(many: list[Tree]): ...\ndef fell(tree: Tree):\n    import ravi_otel.errors\n",
}


def measured(tree: Path, *options: str) -> Any:
    command = [sys.executable, str(ROOT / "scripts" / "house.py"), "--json", *options, str(tree)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "ravi_otel" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_rooms_are_counted_in_statements_and_modules_whatever_their_folder_is_called(tree: Path):
    found = measured(tree, "--no-roads")
    assert {name: room["modules"] for name, room in found["rooms"].items()} == {"(top)": 3, "policy": 3, "enforcement": 2}
    # Two of the function's body, the `if` of the type checker, and the field: not imports, definitions or docstrings.
    assert found["rooms"]["policy"]["statements"] == 4
    assert found["core"]["private"] == 3


def test_a_function_is_foreign_when_its_first_parameter_is_a_mutable_object_of_another_module(tree: Path):
    found = measured(tree, "--no-roads")
    assert {name: room["foreign"] for name, room in found["rooms"].items()} == {"(top)": 0, "policy": 0, "enforcement": 2}
    assert found["rooms"]["enforcement"]["inside"] == 1


def test_a_circle_that_only_types_see_is_told_apart_from_one_that_is_loaded(tree: Path):
    found = measured(tree, "--no-roads")
    assert (found["core"]["circles"], found["core"]["circles with types"]) == (0, 1)
    assert found["circles"] == [["ravi_otel.policy.one", "ravi_otel.policy.two"]]


def test_the_share_of_public_names_with_a_docstring_is_counted(tree: Path):
    # Tree, Limit, grow, cut, plant and fell have none; OwnError and fits have one.
    assert measured(tree, "--no-roads")["core"]["documented"] == 0.25


# What each road came down to, functions and files entered: more is asked for here, with its reason. A client's method is replaced by a
# plain function, which is entered three times a call and counted here, where wrapt's wrapper is not and costs three times as much.
LONGEST = {"chat": (96, 29), "tool": (42, 15), "gated": (134, 24), "spawn": (55, 14), "agent": (153, 25), "sqlite": (150, 34)}


@pytest.mark.timeout(600)  # six processes, on a machine that may have other work
def test_every_road_of_this_package_is_walked_and_none_grows():
    command = [sys.executable, str(ROOT / "benchmarks" / "roads.py"), "--json"]
    roads = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert list(roads) == list(LONGEST)
    for name, road in roads.items():
        assert road.get("problem") is None
        assert (road["entries"] <= LONGEST[name][0], road["files"] <= LONGEST[name][1]) == (True, True), road
        assert road["entries"] >= road["functions"] >= road["files"] > 0
