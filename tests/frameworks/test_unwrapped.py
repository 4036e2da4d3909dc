"""Clients that are not wrapped, the real ones: their requests are counted and refused in the HTTP library below them."""

import json
import os
import sys

import pytest

if not os.environ.get("RAVI_TEST_FRAMEWORKS"):
    pytest.skip("make frameworks runs these, in an environment of their own", allow_module_level=True)

from framework_programs import PROGRAMS, Desk

from ravi_otel.testing import ScriptedLLM

pytestmark = pytest.mark.timeout(300)
CLIENTS = [
    "google_genai",
    "google_genai_async",
    "boto3",
    "mistralai",
    "cohere",
    "ollama",
    "ollama_functions",
    "litellm",
    "litellm_async",
    "litellm_openai",
    "litellm_openai_async",
]


@pytest.fixture
def launch(tmp_path):
    """Run the program under a limit; give its status, the report, and how many requests came."""

    def launched(client, limit):
        with ScriptedLLM("It is in Oslo.") as server:
            desk = Desk(server, tmp_path)
            desk.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
            flags = ["--json", "--limit", limit]
            done = desk.launch(sys.executable, str(PROGRAMS / "unwrapped.py"), client, flags=flags, timeout=240)
            return done.status, json.loads(done.err.splitlines()[-1]), desk.sent

    return launched


@pytest.mark.parametrize("client", CLIENTS)
def test_its_requests_are_counted(launch, client):
    status, report, sent = launch(client, "requests=50")
    assert (status, report["uncovered"], report["limits"][0]["used"]) == (0, [], sent)
    assert sent >= 2


@pytest.mark.parametrize("client", CLIENTS)
def test_its_second_request_is_refused(launch, client):
    _, report, sent = launch(client, "requests=1")
    assert (report["uncovered"], report["limits"][0]["used"], report["limits"][0]["denied"] >= 1, sent) == ([], 1, True, 1)
