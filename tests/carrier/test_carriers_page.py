"""What docs/carriers.md shows is what happens."""

import re
import typing
from pathlib import Path

import pytest

from ravi_otel.carrier import _configuration
from ravi_otel.carrier._inbound import Reason

PAGE = (Path(__file__).parents[2] / "docs" / "carriers.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, re.DOTALL)


@pytest.mark.parametrize(("program", "printed"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_every_program_that_is_shown_prints_what_is_shown(carrying, monkeypatch, capsys, program, printed):
    monkeypatch.setenv("RAVI_CARRY_TO", "billing.internal")
    exec(compile(program, "carriers.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_every_variable_is_on_the_page():
    variables = {_configuration.KEYS, _configuration.TO, _configuration.TRUST, _configuration.NAMES, _configuration.BAGGAGE}
    assert set(re.findall(r"^\| `(RAVI_CARRY_\w+)` \|", PAGE, re.MULTILINE)) == variables


def test_every_reason_is_on_the_page():
    assert set(re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE)) == set(typing.get_args(Reason))
