"""What a server may say over HTTP, and what of it is read, kept and believed."""

from __future__ import annotations

import gzip
import logging
import socket
import threading
import tracemalloc

import pytest
import requests
from misbehaving import Answer, status
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from ravi_otel._telemetry.export.sender import HttpSender


@pytest.fixture
def sender(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    made = HttpSender("traces", OTLPSpanExporter, ())
    yield made
    made.close()


def test_of_an_answer_that_sends_us_elsewhere_nothing_is_inflated(collector, sender):
    bomb = gzip.compress(bytes(16 << 20))
    collector.otherwise = status(302, headers={"location": f"{collector.url}/elsewhere", "content-encoding": "gzip"}, body=bomb)
    tracemalloc.start()
    try:
        answer = sender.send(b"", 5.0)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (answer.verdict, answer.why, collector.requests) == ("refused", "the collector answered 302", 1)
    assert most < 4 << 20


def test_cookies_of_a_server_are_neither_kept_nor_sent_back(collector, sender):
    collector.otherwise = status(200, headers={"set-cookie": "session=1; Path=/"})
    assert [sender.send(b"", 5.0).verdict for _ in range(2)] == ["sent", "sent"]
    assert [headers.get("cookie") for headers in collector.headers] == [None, None]


def test_a_cookie_among_the_headers_that_were_asked_for_is_sent(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "cookie=tenant%3Done")
    collector.otherwise = status(200, headers={"set-cookie": "session=1; Path=/"})
    sender = HttpSender("traces", OTLPSpanExporter, ())
    assert [sender.send(b"", 5.0).verdict for _ in range(2)] == ["sent", "sent"]
    sender.close()
    assert [headers.get("cookie") for headers in collector.headers] == ["tenant=one", "tenant=one"]


def test_a_forked_child_waits_for_no_lock_that_its_parent_held(collector, sender):
    """The session's jar is locked by another thread, as a fork finds it while an answer is read."""
    answers = []
    with sender._session.cookies._cookies_lock:
        sender.renew()
        sending = threading.Thread(target=lambda: answers.append(sender.send(b"", 5.0).verdict), daemon=True)
        sending.start()
        sending.join(5.0)
    assert answers == ["sent"]


@pytest.mark.parametrize("endpoint", ["http://me:hush/x@127.0.0.1:9", "me:hush@127.0.0.1:9"])
def test_an_endpoint_that_cannot_be_read_is_refused_and_its_password_is_in_no_log(exporting, caplog, endpoint):
    with caplog.at_level(logging.DEBUG), pytest.raises(KeyError):
        exporting(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert "the endpoint of OTEL_EXPORTER_OTLP_* is no http or https URL" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_a_header_that_cannot_be_read_is_said_without_its_value(exporting, caplog, protocol, signal):
    with caplog.at_level(logging.DEBUG):
        exporting(signal, OTEL_EXPORTER_OTLP_HEADERS="authorization: Bearer hush", OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "ravi_otel"]
    assert said.startswith(f"ravi-otel: something in OTEL_EXPORTER_OTLP_* for {signal} is not valid and is left out")
    assert "hush" not in caplog.text


def test_a_key_in_the_url_is_in_no_log_of_a_request(collector, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces?key=hush")
    with caplog.at_level(logging.DEBUG):
        sender = HttpSender("traces", OTLPSpanExporter, ())
        assert sender.send(b"", 5.0).verdict == "sent"
        sender.close()
    assert "hush" not in caplog.text


def test_what_the_program_itself_has_these_libraries_do_is_in_its_log_as_ever(collector, sender, caplog):
    with caplog.at_level(logging.DEBUG):
        assert sender.send(b"", 5.0).verdict == "sent"
        requests.post(f"{collector.url}/v1/traces", data=b"", timeout=5.0)
    assert [record.name for record in caplog.records if "POST /v1/traces" in record.getMessage()] == ["urllib3.connectionpool"]


def half_a_head() -> Answer:
    """Say that all is well, and break off before the head of the answer is whole."""

    def give(handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-prot")
        handler.close_connection = True

    return Answer(False, give)


def test_half_a_head_is_no_acknowledgement(collector, sender):
    collector.answers.append(half_a_head())
    assert [sender.send(b"", 5.0).verdict for _ in range(2)] == ["retry", "sent"]


def test_a_head_that_trickles_is_no_acknowledgement_once_it_is_given_up(collector, exporting):
    collector.otherwise = collector.trickle(b"HTTP/1.1 200 OK\r\nX: ")
    exports = exporting(OTEL_BSP_SCHEDULE_DELAY="1")
    exports.spans("one")
    collector.wait(lambda: collector.requests)
    exports.end(within_s=0.8)
    assert exports.lost == {"shutdown": 1}


def test_a_web_page_is_no_acknowledgement_and_what_it_was_sent_is_counted(collector, exporting):
    collector.otherwise = status(200, headers={"content-type": "Text/HTML; charset=utf-8"}, body=b"<h1>Log in</h1>")
    exports = exporting()
    exports.spans("one", "two")
    assert exports.flush() is False
    assert exports.lost == {"export_failed": 2}


def test_a_proxy_that_trickles_its_answer_to_connect_holds_up_no_end(exporting, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        exports = exporting(OTEL_EXPORTER_OTLP_ENDPOINT="https://collector.invalid:4318", OTEL_BSP_SCHEDULE_DELAY="1")
        exports.spans("one")
        connection, _ = proxy.accept()
        with connection:
            assert connection.recv(1_000).startswith(b"CONNECT collector.invalid:4318 ")
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            exports.end(within_s=0.8)
            assert exports.lost == {"shutdown": 1}
