from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

from ravi_otel._runtime.model_call import REFUSED
from ravi_otel._telemetry import names

PACKAGE = Path(names.__file__).parents[1]
CONSTANTS = {name: value for name, value in vars(names).items() if name.isupper() and not name.startswith("_") and isinstance(value, str)}
# What other libraries call their attributes is theirs to say; the runtime lies below telemetry, and is compared below.
ALLOWED = {
    ("foreign.py", "gen_ai.system"),
    ("foreign.py", "gen_ai.agent.id"),
    ("foreign.py", "gen_ai.usage."),
    ("model_call.py", "ravi.limit_exceeded"),
}
LOOKS_LIKE_A_NAME = re.compile(
    r"(gen_ai|openai|server|error|exception|http|user|session|mcp|network)\.[a-z_.]+|ravi\.(?!otel)[a-z_.]+(?:sha256)?"
)


def _literals(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_constant_that_looks_like_a_name_is_in_the_table_and_every_row_has_a_constant():
    found = {value for value in CONSTANTS.values() if LOOKS_LIKE_A_NAME.fullmatch(value)}
    assert found == {row.name for row in names.TABLE if row.kind != "span"}


def test_a_name_is_written_once():
    written = [text for text in _literals(PACKAGE / "_telemetry" / "names.py") if LOOKS_LIKE_A_NAME.fullmatch(text)]
    assert sorted(written) == sorted(set(written))


def test_a_constant_is_a_plain_string():
    assert {type(value) for value in CONSTANTS.values()} == {str}


def _is_stray(path: Path, text: str) -> bool:
    if re.fullmatch(r"gen_ai\.[a-z_.]+|ravi\.(?!otel)[a-z_.]+", text):
        return (path.name, text) not in ALLOWED
    return path.parent.name == "_telemetry" and bool(LOOKS_LIKE_A_NAME.fullmatch(text))


def test_no_name_is_written_outside_the_table():
    elsewhere = [path for path in PACKAGE.rglob("*.py") if path.name != "names.py"]
    assert [(path.name, text) for path in elsewhere for text in _literals(path) if _is_stray(path, text)] == []


def test_the_refusal_that_the_runtime_states_is_the_one_in_the_table():
    assert REFUSED == names.ERROR_LIMIT


def test_every_constant_is_used_by_code():
    sources = [path for path in PACKAGE.rglob("*.py") if path.name != "names.py"]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    table = (PACKAGE / "_telemetry" / "names.py").read_text(encoding="utf-8")
    used = [name for name in CONSTANTS if f"names.{name}" in code or re.search(rf"\({name}\b|, {name}[,)]", table)]
    assert used == list(CONSTANTS)


def test_a_name_stands_once_per_instrument():
    keys = [(row.name, row.kind) for row in names.TABLE]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("row", names.METRICS.values(), ids=lambda row: row.name)
def test_a_metric_has_a_description_a_unit_that_is_no_ratio_and_buckets_when_it_is_a_histogram(row):
    assert row.description
    assert row.unit != "1"
    assert bool(row.buckets) == (row.kind == "histogram")
    assert list(row.buckets) == sorted(set(row.buckets))


def test_the_conventions_bucket_boundaries():
    assert len(names.DURATION_BUCKETS) == len(names.TOKEN_BUCKETS) == 14
    assert (names.DURATION_BUCKETS[0], names.DURATION_BUCKETS[-1]) == (0.01, 81.92)
    assert (names.TOKEN_BUCKETS[0], names.TOKEN_BUCKETS[-1]) == (1, 67_108_864)


def test_the_page_is_what_the_table_says():
    written = runpy.run_path(str(Path(__file__).with_name("names_page.py")))
    assert written["page"]() == written["PAGE"].read_text(encoding="utf-8"), "run make names"


def test_every_name_says_what_it_is():
    assert [row.name for row in names.TABLE if not row.description] == []


def test_every_attribute_has_a_type_and_every_unit_is_of_a_number():
    attributes = [row for row in names.TABLE if row.kind == "attribute"]
    assert [row.name for row in attributes if row.type is None] == []
    assert [row.name for row in attributes if row.unit and row.type not in {"int", "double"}] == []


def test_what_is_told_in_full_detail_alone_is_optional():
    assert {row.need for row in names.TABLE if row.detail == "full"} == {"opt_in"}
