"""Clients that we do not wrap, the real ones: named under limits, and nothing of theirs is taken for covered."""

import json
import os
import sys

import pytest

if not os.environ.get("RAVI_FRAMEWORKS"):
    pytest.skip("make frameworks runs these, in an environment of their own", allow_module_level=True)

from framework_programs import PROGRAMS, Desk

from ravi_otel.testing import ScriptedLLM

pytestmark = pytest.mark.timeout(300)
LIBRARIES = {
    "google_genai": "google.genai",
    "google_genai_async": "google.genai",
    "boto3": "boto3",
    "mistralai": "mistralai",
    "cohere": "cohere",
    "ollama": "ollama",
    "ollama_functions": "ollama",
    "litellm": "litellm",
    "litellm_async": "litellm",
}
MADE = ["google_genai", "boto3", "mistralai", "cohere", "ollama"]
LIMIT = ["--json", "--limit", "requests=5"]


@pytest.fixture
def launch(tmp_path):
    """Run the program under a limit; give its status, the report, and how many requests came."""

    def launched(*words):
        with ScriptedLLM("It is in Oslo.") as server:
            desk = Desk(server, tmp_path)
            desk.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
            done = desk.launch(sys.executable, str(PROGRAMS / "unwrapped.py"), *words, flags=LIMIT, timeout=240)
            return done.status, json.loads(done.err.splitlines()[-1]), desk.sent

    return launched


@pytest.mark.parametrize("client", LIBRARIES)
def test_its_requests_are_counted_and_are_status_5(launch, client):
    status, report, sent = launch(client)
    found = [(each["library"], each["requests"]) for each in report["uncovered"]]
    assert (status, found) == (5, [(LIBRARIES[client], sent)])
    assert sent >= 2


@pytest.mark.parametrize("client", MADE)
def test_one_that_is_made_is_status_5(launch, client):
    status, report, sent = launch(client, "make")
    found = [(each["library"], each["requests"], each["clients"] >= 1) for each in report["uncovered"]]
    assert (status, sent, found) == (5, 0, [(LIBRARIES[client], 0, True)])


@pytest.mark.parametrize("client", ["google_genai", "mistralai", "cohere", "ollama", "litellm"])
def test_one_that_is_imported_is_a_line_in_the_report(launch, client):
    status, report, _ = launch(client, "import")
    assert (status, report["uncovered"]) == (0, [])
    assert report["said"] == [f"The program has {LIBRARIES[client]}, whose own requests the limits do not cover. None was seen."]


@pytest.mark.parametrize("client", ["litellm_openai", "litellm_openai_async"])
def test_what_litellm_asks_through_openai_is_covered(launch, client):
    status, report, sent = launch(client)
    assert (status, report["uncovered"], sent, report["limits"][0]["used"]) == (0, [], 2, 2)
