"""The endpoint: the way there, one of each signal, and what is answered."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking_doctor import ask, states, the
from misbehaving import Answer, Collector, status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse

from ravi_otel._stack.doctor.telemetry import examine_endpoint

SIGNALS = ("traces", "metrics", "logs")
SENT = {"ravi-otel doctor", "doctor.round_trip", "Sent by `ravi-otel doctor` to see it arrive."}


def test_one_span_one_metric_and_one_log_record_are_acknowledged(collector):
    found = ask(examine_endpoint)
    assert {f"endpoint.{signal}": {"well"} for signal in SIGNALS}.items() <= states(found).items()
    assert the(found, "endpoint.connect").state == "well"
    assert len(collector.received) == 3
    assert set(collector.received) == SENT


def test_the_programs_own_headers_go_along_and_their_values_are_not_said(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=s3cret")
    found = ask(examine_endpoint)
    assert {headers["x-key"] for headers in collector.headers} == {"s3cret"}
    assert "s3cret" not in str(found)


def test_a_sampler_that_keeps_nothing_does_not_hide_the_round_trip(collector, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert the(ask(examine_endpoint), "endpoint.traces").state == "well"


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (400, "4318 is for http/protobuf"),
        (401, "OTEL_EXPORTER_OTLP_HEADERS"),
        (403, "OTEL_EXPORTER_OTLP_HEADERS"),
        (404, "Check port and path in OTEL_EXPORTER_OTLP_ENDPOINT"),
        (413, "larger requests"),
        (415, "protobuf"),
        (429, "more requests"),
        (500, "in its log"),
        (503, "takes nothing now"),
        (307, "redirect is not followed"),
    ],
)
def test_a_refusal_is_broken_and_says_what_to_do(collector, code, advice):
    collector.otherwise = status(code, headers={"location": "http://127.0.0.1:9/"} if code == 307 else {})
    found = ask(examine_endpoint)
    assert [the(found, f"endpoint.{signal}").state for signal in SIGNALS] == ["broken"] * 3
    assert str(code) in the(found, "endpoint.logs").said
    assert advice in the(found, "endpoint.logs").advice


def test_a_span_that_is_rejected_from_a_request_that_is_taken_is_broken(collector):
    body = ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=1, error_message="\x1b[31mno")
    ).SerializeToString()
    collector.otherwise = status(200, body=body)
    found = the(ask(examine_endpoint), "endpoint.traces")
    assert found.state == "broken"
    assert "not the span in it" in found.said
    assert "\x1b" not in str(found)


def test_a_page_of_something_else_is_not_taken_for_an_acknowledgement(collector):
    collector.otherwise = status(200, headers={"content-type": "text/html; charset=utf-8"}, body=b"<h1>It works!</h1>")
    found = the(ask(examine_endpoint), "endpoint.logs")
    assert found.state == "broken"
    assert "status 200, text/html" in found.said
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in found.advice


def test_a_port_on_which_nothing_listens_says_how_to_start_the_stack(monkeypatch):
    with socket.socket() as taken:  # bound, and does not listen: nobody else gets it meanwhile
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        found = ask(examine_endpoint)
    refused = the(found, "endpoint.connect")
    assert (refused.state, "nothing listens there" in refused.said, "ravi-otel stack up" in refused.advice) == ("broken", True, True)
    assert the(found, "endpoint.round_trip").state == "left_out"


def test_a_name_without_an_address_is_said(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://no..where:4318")
    assert the(ask(examine_endpoint), "endpoint.name").state == "broken"


def test_without_an_endpoint_nothing_is_sent():
    assert states(ask(examine_endpoint)) == {"endpoint": {"left_out"}}


def test_what_has_another_scheme_is_not_looked_up(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://no..where")
    assert states(ask(examine_endpoint)) == {"endpoint": {"left_out"}}


def test_a_signal_that_is_switched_off_is_not_sent(collector, monkeypatch):
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    assert "endpoint.logs" not in states(ask(examine_endpoint))
    assert len(collector.received) == 2


# -- hostile ------------------------------------------------------------------------------------------------------


def test_an_answer_that_trickles_is_broken_off(collector):
    collector.otherwise = collector.trickle()
    found = ask(examine_endpoint, within_s=0.7)
    assert all(the(found, f"endpoint.{signal}").state == "broken" for signal in SIGNALS)


def test_a_server_that_never_answers_is_not_waited_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as hung:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{hung.getsockname()[1]}")
        found = ask(examine_endpoint, within_s=0.5)
    assert [the(found, f"endpoint.{signal}").state for signal in SIGNALS] == ["broken"] * 3
    assert "time" in the(found, "endpoint.traces").said


def test_an_answer_without_end_is_not_read_to_its_end(collector):
    given = []

    def give(handler):
        handler.send_response(200)
        handler.send_header("content-length", str(1 << 30))
        handler.end_headers()
        try:
            for _ in range(1 << 14):
                handler.wfile.write(b"x" * 65_536)
                given.append(65_536)
        except OSError:
            handler.close_connection = True

    collector.otherwise = Answer(True, give)
    found = ask(examine_endpoint)
    assert the(found, "endpoint.traces").state == "well"  # the status has come, and it is what counts
    assert sum(given) < 1 << 28


def test_what_is_no_http_says_that_port_and_protocol_may_not_belong_together(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(4):
                try:
                    taken, _ = server.accept()
                except OSError:
                    return
                with taken:
                    taken.settimeout(0.5)
                    try:
                        taken.recv(65_536)
                        taken.sendall(b"\x00\x00\x12\x04\x00\x1b[31m\x00\x00\r\n\r\n")
                    except OSError:
                        continue

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        found = the(ask(examine_endpoint), "endpoint.traces")
        thread.join()
    assert (found.state, "4317 for grpc" in found.advice) == ("broken", True)
    assert "is no OTLP endpoint, or speaks another protocol than http/protobuf" in found.said
    assert "\x1b" not in str(found)


# -- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for loopback that signs itself, and its key."""
    folder: Path = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    subprocess.run(["openssl", "req", "-x509", *kind, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.fixture
def over_tls(certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    made = Collector(context)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    yield made
    made.close()


def test_a_certificate_of_nobody_we_know_is_said_with_the_variable_that_names_its_authority(over_tls):
    found = ask(examine_endpoint)
    assert [the(found, f"endpoint.{signal}").state for signal in SIGNALS] == ["broken"] * 3
    assert "TLS with" in the(found, "endpoint.traces").said
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in the(found, "endpoint.traces").advice
    assert over_tls.received == []


def test_with_the_authority_named_all_goes_over_tls(over_tls, certificate, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", certificate[0])
    found = ask(examine_endpoint)
    assert the(found, "endpoint.traces").state == "well"
    assert set(over_tls.received) == SENT


def test_a_server_without_tls_behind_https_is_said(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.replace("http:", "https:"))
    found = the(ask(examine_endpoint), "endpoint.traces")
    assert (found.state, "http://" in found.advice) == ("broken", True)


# -- gRPC ---------------------------------------------------------------------------------------------------------


def test_grpc_against_a_server_that_speaks_http_says_which_port_is_whose(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    found = ask(examine_endpoint, within_s=3.0)
    assert the(found, "endpoint.traces").state == "broken"
    assert "speaks another protocol than grpc" in the(found, "endpoint.traces").said
