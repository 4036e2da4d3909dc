from __future__ import annotations

from dataclasses import dataclass

from heard import Telemetry

from ravi_otel import _current
from ravi_otel._current import Attachment
from ravi_otel._telemetry.context_processor import ContextProcessor
from ravi_otel.policy._runs import ScopeFacts


@dataclass
class Leaf:
    facts: ScopeFacts
    generation: int = 0
    stranded: bool = False


def _foreign_span(backend, leaf):
    with Attachment(_current.with_leaf(leaf)):
        backend.tracer_provider.get_tracer("requests").start_span("GET").end()
    return backend.spans()[-1]


def test_other_libraries_spans_carry_the_run_and_agent(telemetry, backend, make):
    telemetry.pipeline.signals()
    span = _foreign_span(backend, Leaf(make.facts()))
    assert dict(span.attributes) == {
        "gen_ai.agent.name": "researcher",
        "ravi.run.id": "r1",
        "ravi.session.id": "s1",
        "session.id": "s1",
        "gen_ai.conversation.id": "s1",
        "ravi.tenant.id": "t1",
        "ravi.agent.id": "a1",
    }


def test_what_a_span_says_of_itself_by_a_common_name_stays(telemetry, backend, make):
    telemetry.pipeline.signals()
    own = {"session.id": "browser-1", "gen_ai.conversation.id": "thread-1", "user.id": "eve", "ravi.run.id": "forged"}
    with Attachment(_current.with_leaf(Leaf(make.facts(user_id="ann")))):
        backend.tracer_provider.get_tracer("web").start_span("POST", attributes=own).end()
    attributes = dict(backend.spans()[-1].attributes)
    assert {name: attributes[name] for name in own} == {**own, "ravi.run.id": "r1"}
    assert attributes["ravi.session.id"] == "s1"


def test_a_span_outside_every_run_is_left_alone(telemetry, backend):
    telemetry.pipeline.signals()
    assert dict(_foreign_span(backend, None).attributes) == {}


def test_our_own_spans_keep_the_facts_they_started_with(telemetry, backend, make):
    record = make.call(make.facts(agent_name="inner"))
    with Attachment(_current.with_leaf(Leaf(make.facts()))), telemetry.call_started(record):
        pass
    record.status = "ok"
    telemetry.call_ended(record)
    assert backend.span().attributes["gen_ai.agent.name"] == "inner"


def test_it_is_inert_after_retirement_and_awake_again_without_a_second_one(telemetry, backend, make):
    telemetry.pipeline.signals()
    telemetry.retire()
    leaf = Leaf(make.facts())
    assert dict(_foreign_span(backend, leaf).attributes) == {}
    Telemetry(backend.pipeline()).pipeline.signals()
    assert _foreign_span(backend, leaf).attributes["ravi.run.id"] == "r1"
    processors = backend.tracer_provider._active_span_processor._span_processors
    assert sum(isinstance(each, ContextProcessor) for each in processors) == 1


def test_what_it_cannot_read_never_reaches_the_application(telemetry, backend):
    telemetry.pipeline.signals()
    assert _foreign_span(backend, Leaf(object())).name == "GET"
