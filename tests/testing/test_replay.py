from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest

from ravi_otel.errors import ConfigurationError
from ravi_otel.testing import Exchange, ReplayServer, load_recordings

RECORDINGS = Path(__file__).parents[3] / "shared" / "recordings"
recorded = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings are not beside this checkout: ../shared/recordings")


def _exchange(**changes) -> Exchange:
    found = {
        "method": "POST",
        "path": "/v1/chat/completions",
        "request": None,
        "status": 200,
        "headers": {"content-type": "application/json"},
        "body": "{}",
    }
    return Exchange.read(found | changes)


def _replayable() -> list:
    if not RECORDINGS.is_dir():
        return []
    found = load_recordings(RECORDINGS)
    paths = ("/v1/chat/completions", "/v1/responses", "/v1/embeddings")
    plain = [one for one in found if all(each.path in paths and isinstance(each.request, dict) for each in one.exchanges)]
    return [
        next(one for one in plain if one.exchanges[0].path == "/v1/chat/completions" and one.exchanges[0].streamed),
        next(one for one in plain if one.exchanges[0].path == "/v1/responses" and one.exchanges[0].streamed),
        next(one for one in plain if one.exchanges[0].path == "/v1/embeddings" and one.exchanges[0].status == 200),
        next(one for one in plain if one.exchanges[0].status >= 400),
        max(plain, key=lambda one: len(one.exchanges)),
    ]


@recorded
@pytest.mark.parametrize("recording", _replayable(), ids=lambda recording: recording.name)
def test_a_recording_is_answered_byte_for_byte(recording):
    with (
        ReplayServer(recording.exchanges) as server,
        openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client,
    ):
        for exchange in recording.exchanges:
            raw = _send(client, exchange)
            assert raw.status_code == exchange.status
            assert raw.content.decode() == exchange.body
            assert raw.headers["content-type"] == exchange.headers["content-type"]
            assert raw.headers.get("x-request-id") == exchange.headers.get("x-request-id")
        assert server.left == ()
        assert server.unmatched == ()


def _send(client: openai.OpenAI, exchange: Exchange):
    return client._client.request(exchange.method, client.base_url.join(exchange.path), json=exchange.request)


@recorded
def test_all_recordings_load_with_their_names():
    recordings = load_recordings(RECORDINGS)
    assert len(recordings) == 157
    assert all("/" in recording.name and recording.exchanges for recording in recordings)


def test_exchanges_of_one_path_are_answered_in_order():
    with ReplayServer([_exchange(body='{"id": "1"}'), _exchange(body='{"id": "2"}')]) as server:
        assert [_ask(server).id for _ in range(2)] == ["1", "2"]


def test_an_exchange_with_the_same_body_goes_first():
    asked = {"model": "m", "messages": []}
    with ReplayServer([_exchange(body='{"id": "1"}', request={"model": "other"}), _exchange(body='{"id": "2"}', request=asked)]) as server:
        assert [_ask(server).id for _ in range(2)] == ["2", "1"]


def test_a_prefix_that_was_recorded_is_ignored():
    with ReplayServer([_exchange(path="/proxy/openai/chat/completions?api-version=1", body='{"id": "1"}')]) as server:
        assert _ask(server).id == "1"


def test_legacy_and_chat_completions_are_not_confused():
    with ReplayServer([_exchange(path="/v1/completions")]) as server:
        with pytest.raises(openai.NotFoundError, match="No recorded exchange is left for POST /v1/chat/completions"):
            _ask(server)
        assert server.unmatched == ("POST /v1/chat/completions",)


def test_reset_begins_again():
    with ReplayServer([_exchange(body='{"id": "1"}')]) as server:
        first = _ask(server).id
        assert server.left == ()
        server.reset()
        assert _ask(server).id == first


def test_headers_of_the_connection_are_dropped():
    headers = {
        "Content-Type": "application/json",
        "Content-Encoding": "gzip",
        "Content-Length": "7",
        "Set-Cookie": "a=b",
        "OpenAI-Version": "1",
    }
    with (
        ReplayServer([_exchange(headers=headers, body="{}")]) as server,
        openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client,
    ):
        raw = client.chat.completions.with_raw_response.create(model="m", messages=[])
    assert raw.http_response.content == b"{}"
    assert raw.headers["openai-version"] == "1"
    assert not {"set-cookie", "content-encoding"} & set(raw.headers)


def _ask(server: ReplayServer):
    with openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        return client.chat.completions.create(model="m", messages=[])


@pytest.mark.parametrize(
    "text", ["{", "7", "[7]", "[{}]", json.dumps([{"method": "GET", "path": "/", "status": "ok", "headers": {}, "body": ""}])]
)
def test_a_file_that_is_no_recording_is_named(tmp_path, text):
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"broken\.json is no recording"):
        load_recordings(tmp_path)


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_recordings(tmp_path / "nowhere")
