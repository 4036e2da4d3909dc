"""What the page on the gate shows is what happens."""

import re
from pathlib import Path

import ravi_otel
from ravi_otel.supervisor import Budget
from ravi_otel.supervisor._pending_call import MOST_REVISIONS, __file__

PAGE = (Path(__file__).parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")


def test_the_programs_of_the_page_print_what_it_says(capsys):
    ravi_otel.instrument()
    names = {}
    programs, printed = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("python", "text"))
    assert len(programs) == len(printed) == 2
    for program, shown in zip(programs, printed, strict=True):
        exec(compile(program, "gate.md", "exec"), names)
        assert capsys.readouterr().out == shown


def test_every_stop_reason_of_the_gate_is_on_the_page():
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py")]
    spelled = set(re.findall(r'"(?:supervisor_block|loop_detected):([a-z_]+)"', "\n".join(sources)))
    assert len(spelled) > 10
    assert {each for each in spelled if each not in PAGE} == set()


def test_the_figures_of_the_page_are_those_of_the_code():
    budget = Budget()
    assert f"({budget.max_steps}, {budget.max_tool_calls}, {budget.max_seconds})" in PAGE
    assert MOST_REVISIONS == 3
