"""Calls that the limits of a launched program cannot cover: named in the report, and status 5 unless they are accepted."""

import json
import sys

import pytest

BEGIN = """
import json, os, socket, sys
find = socket.getaddrinfo
socket.getaddrinfo = lambda host, *words, **more: find("127.0.0.1", *words, **more)  # every host is the server of this test
URL = os.environ["OPENAI_BASE_URL"].replace("127.0.0.1", "api.mistral.ai") + "/chat/completions"
BODY = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
"""
CLIENTS = {
    "urllib": """
import urllib.request
def ask():
    request = urllib.request.Request(URL, json.dumps(BODY).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))
""",
    "requests": "import requests\ndef ask(): return requests.post(URL, json=BODY).json()\n",
    "httpx": "import httpx\ndef ask(): return httpx.post(URL, json=BODY).json()\n",
    "aiohttp": """
import aiohttp, asyncio
async def asked():
    async with aiohttp.ClientSession() as session, session.post(URL, json=BODY) as reply:
        return await reply.json()
def ask(): return asyncio.run(asked())
""",
}
PRINT = "\nprint(ask()['choices'][0]['message']['content'])"
WRAPPED = "\nimport openai\nprint(openai.OpenAI(max_retries=0).chat.completions.create(**BODY).choices[0].message.content)"
LIMIT = ["--limit", "requests=5"]

OLLAMA = """
import httpx

class BaseClient:
    def __init__(self, host):
        self._client = httpx.Client(base_url=host)

class Client(BaseClient):
    def chat(self):
        return self._client.post("/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "hi"}]})

_client = Client("http://127.0.0.1:11434")
"""


COVERED = [client for client in CLIENTS if client != "urllib"]


def program(*parts, client="urllib"):
    return [sys.executable, "-c", BEGIN + CLIENTS[client] + "".join(parts)]


def known(done):
    return json.loads(done.err.splitlines()[-1])


@pytest.mark.parametrize("client", COVERED)
def test_plain_http_over_a_library_that_is_wrapped_is_counted_from_the_first_call_on_and_refused_with_status_4(desk, client):
    done = desk.launch(*program(PRINT * 3, client=client), flags=["--limit", "requests=2", "--json"])
    report = known(done)
    assert (done.status, done.out, desk.sent) == (4, "hello there\n" * 2, 2), done.err
    assert (report["uncovered"], [limit["used"] for limit in report["limits"]]) == ([], [2])


@pytest.mark.parametrize("client", COVERED)
def test_plain_http_is_counted_without_limits_too(desk, client):
    done = desk.launch(*program(PRINT * 2, client=client))
    assert (done.status, done.out, done.report.count("chat gpt-4o-mini")) == (0, "hello there\n" * 2, 2), done.err


@pytest.mark.parametrize("client", COVERED)
def test_a_host_that_only_the_environment_names_is_a_models(desk, client):
    asks = BEGIN.replace('.replace("127.0.0.1", "api.mistral.ai")', "") + CLIENTS[client] + PRINT * 2
    named = desk.server.base_url.split("/")[2] + "=openai"
    done = desk.launch(sys.executable, "-c", asks, flags=["--limit", "requests=1", "--json"], RAVI_FORMATS=named)
    assert (done.status, done.out, desk.sent) == (4, "hello there\n", 1), done.err


def test_plain_http_over_the_standard_library_is_said_with_status_5(desk):
    done = desk.launch(*program(PRINT * 3), flags=[*LIMIT, "--json"])
    report = known(done)
    assert (done.status, done.out, desk.sent) == (5, "hello there\n" * 3, 3), done.err
    assert (report["outcome"], report["exit_status"], report["program_status"]) == ("uncovered", 5, 0)
    (found,) = report["uncovered"]
    assert (found["host"].partition(":")[0], found["requests"]) == ("api.mistral.ai", 3)
    assert any("did not cover 3 requests to api.mistral.ai" in sentence for sentence in report["said"])
    assert done.run["uncovered"] == report["uncovered"]


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        ([*LIMIT, "--allow-unseen"], {}, "accepted by --allow-unseen"),
        (LIMIT, {"RAVI_ALLOW_UNSEEN": "on"}, "accepted by --allow-unseen"),
        ([*LIMIT, "--observe"], {}, "--allow-unseen accepts it"),
    ],
)
def test_where_it_is_accepted_or_only_observed_it_is_said_and_the_status_is_the_programs(desk, flags, environ, said):
    done = desk.launch(*program(PRINT), flags=flags, COLUMNS="400", **environ)
    assert (done.status, done.run["outcome"]) == (0, "ok"), done.err
    assert "The limits did not cover 1 request to api.mistral.ai" in done.report
    assert said in done.report


def test_quiet_leaves_no_status_5_without_a_word_and_the_list_of_runs_does_not_say_0_of_what_nobody_counted(desk):
    done = desk.launch(*program(PRINT), flags=[*LIMIT, "--quiet"])
    assert (done.status, done.out) == (5, "hello there\n")
    assert "The limits did not cover 1 request to api.mistral.ai" in done.err
    listed = desk.alone(sys.executable, "-m", "ravi_otel", "runs").out.splitlines()[2].split()
    assert (listed[-5], set(listed[-4:-1])) == ("uncovered", {"?"}), listed


def test_what_goes_through_a_wrapped_client_beside_it_is_counted_as_ever(desk):
    done = desk.launch(*program(PRINT, WRAPPED, PRINT, WRAPPED), flags=[*LIMIT, "--json"])
    report = known(done)
    assert (done.status, desk.sent, [limit["used"] for limit in report["limits"]]) == (5, 4, [2]), done.err
    assert [found["requests"] for found in report["uncovered"]] == [2]


def test_calls_of_wrapped_clients_to_a_known_host_are_covered(desk):
    wrapped = WRAPPED.replace("max_retries=0", "max_retries=0, base_url=URL.removesuffix('/chat/completions')")
    done = desk.launch(*program(wrapped * 2), flags=[*LIMIT, "--json"])
    report = known(done)
    assert (done.status, report["uncovered"], report["said"]) == (0, [], []), done.err


def test_a_limit_that_ends_the_program_is_status_4_and_the_rest_is_said_too(desk):
    done = desk.launch(*program(PRINT, WRAPPED), flags=["--limit", "requests=0"], COLUMNS="400")
    assert (done.status, done.run["outcome"]) == (4, "stopped"), done.err
    assert "The limits did not cover 1 request to api.mistral.ai" in done.report


def test_forked_workers_are_counted_together(desk):
    fork = "\nask()\nfor _ in range(2):\n    if not os.fork():\n        ask(); ask(); sys.exit()\nos.wait(); os.wait()"
    done = desk.launch(*program(fork), flags=[*LIMIT, "--json"])
    assert (done.status, [found["requests"] for found in known(done)["uncovered"]]) == (5, [desk.sent]), done.err
    assert desk.sent == 5


def test_what_many_threads_ask_at_once_at_the_very_first_is_counted_to_the_last(desk):
    threads = "\nimport threading\nasking = [threading.Thread(target=ask) for _ in range(16)]\n"
    threads += "for each in asking: each.start()\nfor each in asking: each.join()"
    done = desk.launch(*program(threads), flags=[*LIMIT, "--json"])
    assert [found["requests"] for found in known(done)["uncovered"]] == [desk.sent] == [16], done.err


@pytest.mark.parametrize("code", ["", "import ravi_otel\nwith ravi_otel.run(): pass", "import http.client, aiohttp, requests"])
def test_limits_without_a_call_are_said_and_are_no_failure(desk, code):
    done = desk.launch(sys.executable, "-c", code, flags=LIMIT)
    assert done.status == 0
    assert "No call of a model was seen" in done.report


def test_where_no_call_was_seen_the_report_says_how_a_model_elsewhere_is_named(desk):
    done = desk.launch(sys.executable, "-c", "", flags=LIMIT, COLUMNS="400")
    assert "name its host, as in RAVI_FORMATS=llm.internal=auto." in done.report


@pytest.mark.parametrize(("limits", "said"), [(["tool_calls=1"], False), (["tool.look=1"], False), (["tool_calls=1", "requests=5"], True)])
def test_a_program_that_calls_tools_alone_is_told_of_models_only_where_limits_are_on_their_calls(desk, limits, said):
    code = "import ravi_otel\nravi_otel.tool(name='look')(lambda: None)()"
    done = desk.launch(sys.executable, "-c", code, flags=[word for limit in limits for word in ("--limit", limit)])
    assert (done.status, "No call of a model was seen" in done.report) == (0, said), done.err


def test_without_limits_nothing_is_said_and_nothing_put_before_a_client(desk):
    code = (
        PRINT + "\nimport http.client, httpcore\nprint(http.client.HTTPConnection.endheaders.__code__.co_filename == http.client.__file__)"
    )
    done = desk.launch(*program(code))
    assert (done.status, done.out, "cover" in done.report, "No call" in done.report) == (0, "hello there\nTrue\n", False, False), done.err


def test_a_client_of_another_package_is_counted_wherever_it_asks(desk):
    (desk.directory / "ollama.py").write_text(OLLAMA)
    (desk.directory / "asks.py").write_text("import sys, ollama\nclient = ollama.Client(sys.argv[1])\nclient.chat(), client.chat()\n")
    done = desk.launch(sys.executable, "asks.py", desk.server.base_url, flags=["--limit", "requests=1", "--json"])
    report = known(done)
    assert (done.status, report["uncovered"], desk.sent) == (4, [], 1), done.err
