from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ravi_otel.telemetry import semconv

PACKAGE = Path(semconv.__file__).parents[1]
NAMES = {row.name for row in semconv.TABLE}
LOOKS_LIKE_A_NAME = re.compile(r"(gen_ai|openai|server|error|exception|http)\.[a-z_.]+|ravi\.(?!otel)[a-z_.]+")


def _literals(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_constant_that_looks_like_a_name_is_in_the_table():
    found = {text for text in _literals(PACKAGE / "telemetry" / "semconv.py") if LOOKS_LIKE_A_NAME.fullmatch(text)}
    assert found <= NAMES
    assert found >= NAMES


def test_no_name_is_written_outside_semconv():
    strays = {
        (path.name, text)
        for path in (PACKAGE / "telemetry").rglob("*.py")
        if path.name != "semconv.py"
        for text in _literals(path)
        if LOOKS_LIKE_A_NAME.fullmatch(text)
    }
    assert strays == set()


def test_no_gen_ai_name_is_used_anywhere_that_the_table_does_not_have():
    # What other libraries call their attributes is theirs to say.
    ours = [path for path in PACKAGE.rglob("*.py") if path.name != "foreign.py"]
    used = {text for path in ours for text in _literals(path) if re.fullmatch(r"gen_ai\.[a-z_.]+", text)}
    assert used <= NAMES


def test_every_constant_is_used_by_code():
    code = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "telemetry").glob("*.py") if path.name != "semconv.py")
    constants = [name for name, value in vars(semconv).items() if name.isupper() and not name.startswith("_") and isinstance(value, str)]
    assert [name for name in constants if f"semconv.{name}" not in code] == []


def test_a_name_stands_once_per_instrument():
    keys = [(row.name, row.instrument) for row in semconv.TABLE]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("row", semconv.METRICS.values(), ids=lambda row: row.name)
def test_a_metric_has_a_description_a_unit_that_is_no_ratio_and_buckets_when_it_is_a_histogram(row):
    assert row.description
    assert row.unit != "1"
    assert bool(row.buckets) == (row.instrument == "histogram")
    assert list(row.buckets) == sorted(set(row.buckets))


def test_the_conventions_bucket_boundaries():
    assert len(semconv.DURATION_BUCKETS) == len(semconv.TOKEN_BUCKETS) == 14
    assert (semconv.DURATION_BUCKETS[0], semconv.DURATION_BUCKETS[-1]) == (0.01, 81.92)
    assert (semconv.TOKEN_BUCKETS[0], semconv.TOKEN_BUCKETS[-1]) == (1, 67_108_864)
