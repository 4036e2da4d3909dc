"""Hold the package to every recorded exchange; the same code prints the table of `table.py`."""

from __future__ import annotations

import json
import os

import pytest
from recorded_calls import FORMS
from recorded_check import Case, Result, load, replay
from recorded_facts import finish_reasons_of, told_by
from table import COLOURS, main, recordings_folder

from ravi_otel.testing import Exchange

_results: dict[tuple[str, str], Result] = {}


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    folder = recordings_folder()
    if not folder.is_dir():
        pytest.skip(f"the recordings are not at {folder}: name their folder with RAVI_RECORDINGS")
    return load(folder)[0]


@pytest.fixture(params=[(colour, form) for form in FORMS for colour in COLOURS], ids="-".join)
def result(request, cases) -> Result:
    if request.param not in _results:
        _results[request.param] = replay(_share(cases, *request.param), *request.param)
    return _results[request.param]


def _share(cases: list[Case], colour: str, form: str) -> list[Case]:
    """Give each form every exchange in one colour or the other; `make recordings` and RAVI_LONG have all in both."""
    return cases if os.environ.get("RAVI_LONG") else cases[(COLOURS.index(colour) + list(FORMS).index(form)) % 2 :: 2]


def _problems(result: Result) -> list[str]:
    return [f"{verdict.case.name}: {problem}" for verdict in result.verdicts for problem in verdict.problems]


def test_the_caller_gets_what_an_uninstrumented_client_gives(result):
    assert [verdict.case.name for verdict in result.verdicts if not verdict.same] == []


def test_each_exchange_has_one_client_span(result):
    assert [verdict.case.name for verdict in result.verdicts if verdict.spans != 1] == []


def test_spans_metrics_and_ledger_say_of_each_exchange_what_its_body_says(result):
    assert _problems(result) == []


def test_the_sums_of_the_whole_run_agree_exactly(result):
    assert result.problems == []
    assert result.holds


def test_most_bodies_report_tokens_that_can_be_compared(result):
    assert sum(verdict.told.tokens > 0 for verdict in result.verdicts) >= len(result.verdicts) * 0.9


def test_the_table_needs_recordings(tmp_path, capsys):
    assert main(["--recordings", str(tmp_path / "none")]) == 2
    assert "There are no recordings in" in capsys.readouterr().err


def _chat(**changes):
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi"}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }
    request = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi"}]}
    exchange = {
        "method": "POST",
        "path": "/v1/chat/completions",
        "request": request,
        "status": 200,
        "body": json.dumps({**body, **changes}),
    }
    return {**exchange, "headers": {"content-type": "application/json"}}


def test_the_table_ends_with_0_when_all_holds(tmp_path, capsys):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "one.json").write_text(json.dumps([_chat()]))
    assert main(["--recordings", str(tmp_path), "--colour", "sync"]) == 0
    assert "All of it holds: 1 exchanges, each sync plain." in capsys.readouterr().out


def test_the_table_ends_with_1_when_a_span_says_something_else(tmp_path, capsys, monkeypatch):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "one.json").write_text(json.dumps([_chat()]))
    monkeypatch.setattr("recorded_check.told_by", lambda exchange: told_by(Exchange.read(_chat(id="chatcmpl-2"))))
    assert main(["--recordings", str(tmp_path), "--colour", "sync"]) == 1
    assert "gen_ai.response.id: chatcmpl-1 instead of chatcmpl-2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("response", "reasons"),
    [
        ({"status": "completed", "output": [{"type": "message"}]}, ("stop",)),
        ({"status": "completed", "output": [{"type": "reasoning"}, {"type": "function_call"}]}, ("tool_calls",)),
        ({"status": "completed", "output": [{"type": "custom_tool_call"}]}, ("tool_calls",)),
        ({"status": "incomplete", "output": [], "incomplete_details": {"reason": "max_output_tokens"}}, ("length",)),
        ({"status": "incomplete", "output": [], "incomplete_details": {"reason": "content_filter"}}, ("content_filter",)),
        ({"status": "failed", "output": [], "error": {"code": "server_error", "message": "no"}}, ("error",)),
        ({"status": "in_progress", "output": []}, ()),
    ],
)
def test_the_package_says_why_a_response_ended_in_the_words_of_chat(response, reasons):
    from ravi_otel._instrumentation.formats.responses import Responses

    assert finish_reasons_of(response) == reasons
    assert Responses().reply(response).finish_reasons == reasons


def test_a_first_chunk_without_a_name_does_not_name_the_stream():
    from ravi_otel._instrumentation.formats.chat import CHAT
    from ravi_otel.policy._usage import Call

    collector = CHAT.collector(Call("chat", "chat.completions"))
    collector.add({"id": "", "model": "", "choices": [], "prompt_filter_results": []})
    collector.add({"id": "chatcmpl-1", "model": "gpt-4.1", "choices": [{"index": 0, "delta": {"content": "Hi"}}]})
    collector.add({"id": "chatcmpl-1", "model": "gpt-4.1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    reply = collector.reply()
    assert (reply.id, reply.model, reply.finish_reasons) == ("chatcmpl-1", "gpt-4.1", ("stop",))
