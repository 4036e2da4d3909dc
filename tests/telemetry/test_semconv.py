from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

from ravi_otel._runtime.settlement import REFUSED
from ravi_otel._telemetry import catalog, semconv

PACKAGE = Path(semconv.__file__).parents[1]
NAMES = {row.name for row in catalog.TABLE}
# What other libraries call their attributes is theirs to say; the runtime lies below telemetry, and is compared below.
ALLOWED = {
    ("foreign.py", "gen_ai.system"),
    ("foreign.py", "gen_ai.agent.id"),
    ("foreign.py", "gen_ai.usage."),
    ("settlement.py", "ravi.limit_exceeded"),
}
LOOKS_LIKE_A_NAME = re.compile(r"(gen_ai|openai|server|error|exception|http|user|session)\.[a-z_.]+|ravi\.(?!otel)[a-z_.]+(?:sha256)?")


def _literals(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_constant_that_looks_like_a_name_is_in_the_table():
    found = {text for text in _literals(PACKAGE / "_telemetry" / "semconv.py") if LOOKS_LIKE_A_NAME.fullmatch(text)}
    assert found <= NAMES
    assert found >= {row.name for row in catalog.TABLE if row.instrument != "span"}


def _is_stray(path: Path, text: str) -> bool:
    if re.fullmatch(r"gen_ai\.[a-z_.]+|ravi\.(?!otel)[a-z_.]+", text):
        return (path.name, text) not in ALLOWED
    return path.parent.name == "_telemetry" and bool(LOOKS_LIKE_A_NAME.fullmatch(text))


def test_no_name_is_written_outside_semconv():
    elsewhere = [path for path in PACKAGE.rglob("*.py") if path.name != "semconv.py"]
    assert [(path.name, text) for path in elsewhere for text in _literals(path) if _is_stray(path, text)] == []


def test_the_refusal_that_the_runtime_states_is_the_one_in_the_table():
    assert REFUSED == semconv.ERROR_LIMIT


def test_every_constant_is_used_by_code():
    sources = [path for path in PACKAGE.rglob("*.py") if path.name not in {"semconv.py", "catalog.py"}]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    constants = [name for name, value in vars(semconv).items() if name.isupper() and not name.startswith("_") and isinstance(value, str)]
    assert [name for name in constants if f"semconv.{name}" not in code] == []


def test_a_name_stands_once_per_instrument():
    keys = [(row.name, row.instrument) for row in catalog.TABLE]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("row", catalog.METRICS.values(), ids=lambda row: row.name)
def test_a_metric_has_a_description_a_unit_that_is_no_ratio_and_buckets_when_it_is_a_histogram(row):
    assert row.description
    assert row.unit != "1"
    assert bool(row.buckets) == (row.instrument == "histogram")
    assert list(row.buckets) == sorted(set(row.buckets))


def test_the_conventions_bucket_boundaries():
    assert len(semconv.DURATION_BUCKETS) == len(semconv.TOKEN_BUCKETS) == 14
    assert (semconv.DURATION_BUCKETS[0], semconv.DURATION_BUCKETS[-1]) == (0.01, 81.92)
    assert (semconv.TOKEN_BUCKETS[0], semconv.TOKEN_BUCKETS[-1]) == (1, 67_108_864)


def test_the_page_is_what_the_table_says():
    written = runpy.run_path(str(Path(__file__).with_name("names_page.py")))
    assert written["page"]() == written["PAGE"].read_text(encoding="utf-8"), "run make names"


def test_every_name_says_what_it_is_or_is_described_by_the_convention_it_is_from():
    assert [row.name for row in catalog.TABLE if row.source == "ravi-otel" and not row.description] == []
