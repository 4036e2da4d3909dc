"""Certificates come from the standard variables, of the server and of the client."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from misbehaving import Collector


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
def over_tls(certificate: tuple[str, str]) -> Iterator[Collector]:
    """A collector that wants to see a certificate of the client too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.load_verify_locations(certificate[0])
    context.verify_mode = ssl.CERT_REQUIRED
    made = Collector(context)
    yield made
    made.close()


def test_spans_go_over_tls_with_a_certificate_of_the_client(over_tls, certificate, exporting):
    cert, key = certificate
    exports = exporting(
        OTEL_EXPORTER_OTLP_ENDPOINT=over_tls.url,
        OTEL_EXPORTER_OTLP_CERTIFICATE=cert,
        OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=cert,
        OTEL_EXPORTER_OTLP_CLIENT_KEY=key,
    )
    exports.spans("one")
    assert exports.flush() is True
    assert over_tls.received == ["one"]


def test_nothing_is_sent_to_a_server_whose_certificate_is_not_trusted(over_tls, exporting):
    exports = exporting(OTEL_EXPORTER_OTLP_ENDPOINT=over_tls.url)
    exports.spans("one")
    assert exports.flush() is False
    exports.end()
    assert (over_tls.received, exports.lost) == ([], {"shutdown": 1})


def test_an_answer_that_trickles_over_tls_is_broken_off_too(over_tls, certificate, exporting):
    over_tls.answers.append(over_tls.trickle())
    cert, key = certificate
    exports = exporting(
        OTEL_EXPORTER_OTLP_ENDPOINT=over_tls.url,
        OTEL_EXPORTER_OTLP_CERTIFICATE=cert,
        OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=cert,
        OTEL_EXPORTER_OTLP_CLIENT_KEY=key,
        OTEL_EXPORTER_OTLP_TIMEOUT="0.1",
    )
    exports.spans("one")
    exports.flush()
    over_tls.wait(lambda: over_tls.received)
    assert over_tls.received == ["one"]
