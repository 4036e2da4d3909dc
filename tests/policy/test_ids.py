from __future__ import annotations

import pickle

import pytest

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import AgentId, TopicId


def test_an_agent_id_is_the_text_it_was_made_from():
    assert AgentId("researcher") == "researcher"
    assert {AgentId("researcher"): 1}["researcher"] == 1


@pytest.mark.parametrize("wrong", ["", "  ", "a\nb", "a\x00b", "a\x1b[31m", "a\u2028b", "\ud800", "x" * 257, 3, None])
def test_an_agent_id_refuses_what_cannot_be_shown(wrong):
    with pytest.raises(ConfigurationError, match=r"^agent_id="):
        AgentId(wrong)


@pytest.mark.parametrize("name", ["x" * 256, "研究者", "a b", "v1.2/β", "family 👩‍👩‍👧"])
def test_an_agent_id_may_be_any_printable_name(name):
    assert AgentId(name) == name


def test_an_agent_id_crosses_a_process():
    arrived = pickle.loads(pickle.dumps(AgentId("researcher")))

    assert type(arrived) is AgentId


def test_a_topic_is_a_type_and_a_source():
    topic = TopicId("agent.progress", "r1")

    assert (topic.type, topic.source, str(topic)) == ("agent.progress", "r1", "agent.progress/r1")
    assert hash(topic) == hash(TopicId("agent.progress", "r1"))


@pytest.mark.parametrize(("kind", "source", "named"), [("", "r1", "type"), ("t", "\n", "source")])
def test_a_topic_refuses_what_cannot_be_shown(kind, source, named):
    with pytest.raises(ConfigurationError, match=rf"^{named}="):
        TopicId(kind, source)
