from __future__ import annotations

import re
import textwrap

import ravi_otel.testing


def test_the_names_are_sorted_and_all_there():
    assert ravi_otel.testing.__all__ == sorted(ravi_otel.testing.__all__)
    assert all(hasattr(ravi_otel.testing, name) for name in ravi_otel.testing.__all__)


def test_the_example_in_the_docstring_runs():
    example = re.split(r"^::$", ravi_otel.testing.__doc__, flags=re.MULTILINE)[1]
    exec(compile(textwrap.dedent(example), "docstring", "exec"), {})
