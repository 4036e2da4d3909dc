"""Public exchanges with other providers: the same bytes for the program with us and without, and the usage that the body tells."""

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import requests

import ravi_otel
from ravi_otel._instrumentation.formats.dialects import dialect_of, format_for_request
from ravi_otel._instrumentation.formats.format import Host, Request, read_body, read_events
from ravi_otel._instrumentation.formats.framing import Framing
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture

EXCHANGES = [json.loads(line) for line in (Path(__file__).parent / "providers" / "exchanges.jsonl").read_text().splitlines()]
EVERY = pytest.mark.parametrize("exchange", EXCHANGES, ids=[f"{each['path'][-60:]}-{at}" for at, each in enumerate(EXCHANGES)])
PIECE = 61


def answered(exchange):
    """Give the bytes of the answer."""
    return base64.b64decode(exchange["base64"]) if "base64" in exchange else exchange["text"].encode()


class Handler(BaseHTTPRequestHandler):
    """Answer the one exchange that is offered, in pieces."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        offered = self.server.offered
        self.server.seen.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        for name, value in {"content-type": offered["content_type"] or "application/json", **offered["headers"]}.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        body = answered(offered)
        for at in range(0, len(body), PIECE):
            piece = body[at : at + PIECE]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        """Be quiet."""


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def by_httpx(url, content, *, streamed):
    headers = {"content-type": "application/json"}
    if not streamed:
        return httpx.post(url, content=content, headers=headers).content
    with httpx.stream("POST", url, content=content, headers=headers) as answer:
        return b"".join(answer.iter_bytes())


def by_requests(url, content, *, streamed):
    with requests.post(url, data=content, headers={"content-type": "application/json"}, stream=streamed, timeout=60) as answer:
        return b"".join(answer.iter_content(PIECE)) if streamed else answer.content


@contextmanager
def instrumented(exchange, address):
    provider = exchange["provider"]
    with Capture() as capture:
        ravi_otel.instrument(
            tracer_provider=capture.tracer_provider,
            meter_provider=capture.meter_provider,
            logger_provider=capture.logger_provider,
            formats={address: dialect_of(provider)},
            providers={address: provider},
        )
        try:
            yield capture
        finally:
            ravi_otel.uninstrument()


def test_most_of_them_were_read_alike_by_somebody_else():
    assert len(EXCHANGES) == 44
    assert sum(each["agreed"] for each in EXCHANGES) == 32
    assert all(each["licence"] in ("MIT", "Apache-2.0") for each in EXCHANGES)


@EVERY
def test_the_bytes_of_an_exchange_tell_what_it_used(exchange):
    provider = exchange["provider"]
    found = format_for_request(dialect_of(provider), "POST", exchange["path"], exchange["request"], provider)
    request = Request("POST", exchange["path"], exchange["request"], Host(provider, False, exchange["host"], 443), exchange["streamed"])
    assert found.streams(request) is exchange["streamed"]
    call, data = found.call(request), answered(exchange)
    informed = found.informed([(name.encode(), value.encode()) for name, value in exchange["headers"].items()])
    if exchange["streamed"]:
        parser, collector = (Framing.of(exchange["content_type"]) or found.framing(request)).parser(), found.collector(call)
        for at in range(0, len(data), PIECE):
            for event in parser.feed(data[at : at + PIECE]):
                collector.add(event)
        for event in parser.end():
            collector.add(event)
        assert (parser.lossy, collector.complete) == (False, True)
        reply = read_events(collector, call)
    else:
        reply = read_body(informed, lambda: data, call)
    assert (call.operation, call.model) == (exchange["operation"], exchange["model"])
    usage = reply.usage
    assert [usage.input_tokens, usage.output_tokens] == exchange["tokens"]
    assert (usage.cached_input_tokens, usage.reasoning_tokens) == (exchange["cached"], exchange["reasoning"])
    assert (usage.source, list(reply.finish_reasons)) == ("reported", exchange["reasons"])


@EVERY
@pytest.mark.parametrize("ask", [by_httpx, by_requests])
def test_a_program_gets_the_same_and_the_ledger_what_the_body_tells(exchange, ask, server):
    server.offered, server.seen = exchange, []
    address = f"127.0.0.1:{server.server_address[1]}"
    url, content = f"http://{address}{exchange['path']}", json.dumps(exchange["request"]).encode()
    without = ask(url, content, streamed=exchange["streamed"])
    with instrumented(exchange, address) as capture, ravi_otel.run("replay") as run:
        assert ask(url, content, streamed=exchange["streamed"]) == without == answered(exchange)
        drain()
        stats = run.stats()
    assert server.seen[0] == server.seen[1]
    assert [stats.input_tokens, stats.output_tokens] == exchange["tokens"]
    assert stats.requests == 1
    (span,) = [each for each in capture.spans() if "gen_ai.request.model" in each.attributes]
    assert span.attributes["gen_ai.request.model"] == exchange["model"]
