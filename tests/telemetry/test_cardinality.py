from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from ravi_otel._telemetry.spans import CardinalityLimit, finite, integer, text, words
from ravi_otel.policy._usage import Reply, Usage


def test_the_first_two_thousand_names_pass_and_later_ones_are_other():
    limit = CardinalityLimit()
    assert [limit.admit(f"n{number}") for number in range(2_000)] == [(f"n{number}",) for number in range(2_000)]
    assert limit.admit("late", None) == ("_other", None)
    assert limit.admit("n7") == ("n7",)


def test_threads_together_get_no_more_than_the_limit():
    limit = CardinalityLimit(50)
    passed: list[str] = []

    def work(thread: int) -> None:
        passed.extend(name for number in range(200) if (name := limit.admit(f"{thread}-{number}")[0]) != "_other")

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 50


@given(st.text(st.characters(codec=None)) | st.integers() | st.binary() | st.none() | st.floats())
def test_any_value_becomes_short_text_that_can_be_encoded(value):
    assert len(text(value)) <= 256
    text(value).encode()


def test_a_name_that_cannot_be_written_is_its_type():
    class Broken:
        def __str__(self):
            raise RuntimeError

    assert text(Broken()) == "Broken"


@given(st.floats() | st.integers() | st.booleans() | st.text() | st.lists(st.text() | st.integers()))
def test_numbers_are_finite_and_fit_64_bits_or_are_left_out(value):
    number, whole, strings = finite(value), integer(value), words(value)
    assert number is None or -1.8e308 < number < 1.8e308
    assert whole is None or -(2**63) < whole < 2**63
    assert strings is None or all(isinstance(each, str) for each in strings)


def test_hostile_models_make_at_most_two_thousand_and_one_series(telemetry, backend, make):
    for number in range(2_500):
        record = make.call(model=f"m{number}", server_address=f"h{number}")
        record.status = "ok"
        record.reply, record.usage, record.cost_nano = Reply(model=f"r{number}" * 500), Usage(1, 1), 1
        telemetry.call_ended(record)
    metrics = backend.metrics()
    assert len(metrics["gen_ai.client.operation.duration"]) <= 2_001
    assert len(metrics["ravi.usage.cost"]) <= 2_001
    assert sum(point.count for point in metrics["gen_ai.client.operation.duration"]) == 2_500
    (late,) = [point for point in metrics["gen_ai.client.operation.duration"] if point.attributes["gen_ai.request.model"] == "_other"]
    assert late.attributes["gen_ai.response.model"] == "_other"
    assert late.attributes["gen_ai.operation.name"] == "chat"


def test_hostile_tool_names_make_at_most_two_thousand_and_one_series(telemetry, backend, make):
    for number in range(2_500):
        record = make.tool(f"tool-{number}")
        record.status = "ok"
        telemetry.tool_ended(record)
    assert len(backend.points("gen_ai.execute_tool.duration")) <= 2_001
