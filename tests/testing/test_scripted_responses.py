"""The scripted server keeps responses as the API does: queued, retrieved, cancelled, compacted, deleted."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from ravi_otel.testing import Raw, ScriptedLLM, Text

BEHIND: dict[str, Any] = {"model": "gpt-4o-mini", "input": "hi", "extra_body": {"background": True}}


def get(client: openai.OpenAI, path: str) -> Any:
    return client.get(path, cast_to=object)


@pytest.fixture
def client() -> Any:
    with ScriptedLLM(Text("one two three", usage=(5, 3))) as llm, openai.OpenAI(api_key="k", base_url=llm.base_url, max_retries=0) as made:
        yield made


def test_what_is_asked_for_in_the_background_is_queued_and_whole_when_it_is_retrieved(client):
    queued = client.responses.create(**BEHIND)
    found = client.responses.retrieve(queued.id)
    assert (queued.status, queued.usage, queued.output) == ("queued", None, [])
    assert (found.id, found.status, found.output_text, found.usage.total_tokens) == (queued.id, "completed", "one two three", 8)


def test_a_script_may_say_that_it_is_still_being_made():
    answers = [Text("x"), Text("x", finish_reason="in_progress"), Text("x")]
    with ScriptedLLM(answers) as llm, openai.OpenAI(api_key="k", base_url=llm.base_url, max_retries=0) as client:
        name = client.responses.create(**BEHIND).id
        assert [client.responses.retrieve(name).status for _ in range(2)] == ["in_progress", "completed"]


def test_a_stream_goes_on_after_the_event_that_was_seen_last(client):
    numbers = [
        json.loads(line[6:])["sequence_number"]
        for line in client.get("/responses/resp_7?stream=true&starting_after=3", cast_to=str).splitlines()
        if line.startswith("data: ")
    ]
    assert numbers == list(range(4, 4 + len(numbers)))


def test_a_response_is_cancelled_and_deleted_under_its_own_name(client):
    cancelled: Any = client.post("/responses/resp_7/cancel", cast_to=object)
    deleted: Any = client.delete("/responses/resp_7", cast_to=object)
    assert (cancelled["id"], cancelled["status"], cancelled["usage"]) == ("resp_7", "cancelled", None)
    assert (deleted["id"], deleted["deleted"]) == ("resp_7", True)


def test_a_conversation_is_compacted(client):
    told: Any = client.post("/responses/compact", body={"model": "m", "input": "hi"}, cast_to=object)
    assert (told["object"], told["output"][0]["type"], told["usage"]["total_tokens"]) == ("response.compaction", "compaction", 8)


def test_files_and_batches_answer_what_the_script_writes_out():
    with (
        ScriptedLLM([Raw(b"a\nb\n", content_type="application/octet-stream"), Text("x")]) as llm,
        openai.OpenAI(api_key="k", base_url=llm.base_url, max_retries=0) as client,
    ):
        assert client.files.content("file-1").content == b"a\nb\n"
        with pytest.raises(openai.InternalServerError, match="script answered Text"):
            get(client, "/batches/batch_1")


def test_a_path_nobody_knows_is_none(client):
    with pytest.raises(openai.NotFoundError):
        get(client, "/unheard/of")
