"""A client package that is imported a second time, as hot reloaders and tests do, is wrapped like the first."""

import asyncio
import importlib
import itertools
import sys

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._setup import outside
from ravi_otel.testing import ScriptedLLM

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(client):
    return client.chat.completions.create(model="gpt-4o-mini", messages=MESSAGES)


def message(client):
    return client.messages.create(model="claude-opus-4-8", messages=MESSAGES, max_tokens=5)


CLIENTS = [("openai", "OpenAI", chat), ("anthropic", "Anthropic", message), ("groq", "Groq", chat)]
FUNNELS = ("SyncAPIClient", "AsyncAPIClient")


@pytest.fixture(params=CLIENTS, ids=lambda client: client[0])
def client(request):
    """Give a package's name, its class, and how it is asked; the copy that other tests know is back afterwards."""
    name = request.param[0]
    importlib.import_module(name)
    before = {key: module for key, module in sys.modules.items() if key.partition(".")[0] == name}
    yield request.param
    forget(name)
    sys.modules.update(before)
    ravi_otel.uninstrument()


def forget(name):
    """Have the next import make the package anew: all of openai; of the others all but their types, which take seconds to make."""
    for key in [key for key in sys.modules if key.partition(".")[0] == name]:
        if name == "openai" or not f"{key}.".startswith(f"{name}.types."):
            del sys.modules[key]


def imported_again(name):
    forget(name)
    return importlib.import_module(name)


def attempt(copy, client, server, kind):
    name, made, ask = client
    base_url = server.base_url.removesuffix("/v1") if name == "anthropic" else server.base_url
    one = getattr(copy, kind + made)(base_url=base_url, api_key="k", max_retries=0)

    async def ask_and_close():
        async with one:
            await ask(one)

    with pytest.raises(BudgetExhaustedError):
        asyncio.run(ask_and_close()) if kind else ask(one)
    if not kind:
        one.close()


def test_a_second_copy_is_held_to_the_limits_and_so_is_the_first(client):
    first = sys.modules[client[0]]
    ravi_otel.instrument()
    second, third = imported_again(client[0]), imported_again(client[0])
    with ScriptedLLM("ok") as server, ravi_otel.run("r", limits=["requests=0"]):
        for copy, kind in itertools.product((first, second, third), ("", "Async")):
            attempt(copy, client, server, kind)
        assert not server.requests


def test_every_copy_has_its_identical_methods_back(client):
    copies = [sys.modules[client[0]], imported_again(client[0])]
    bases = [copy._base_client for copy in copies]
    before = [getattr(base, funnel).__dict__["request"] for base in bases for funnel in FUNNELS]
    finders = list(sys.meta_path)
    ravi_otel.instrument()
    bases.append(imported_again(client[0])._base_client)
    wrapped = [getattr(base, funnel).__dict__["request"] for base in bases for funnel in FUNNELS]
    ravi_otel.uninstrument()
    after = [getattr(base, funnel).__dict__["request"] for base in bases for funnel in FUNNELS]
    assert [one is other for one, other in zip(before, wrapped, strict=False)] == [
        True,
        True,
        False,
        False,
    ]  # the first is in nobody's hands yet
    assert [one is other for one, other in zip(before, after, strict=False)] == [True] * 4
    assert [method.__wrapped__ for method in wrapped[4:]] == after[4:]
    assert sys.meta_path == finders


def test_a_module_that_is_reloaded_is_wrapped_again(client):
    ravi_otel.instrument()
    copy = imported_again(client[0])
    base = importlib.reload(copy._base_client)
    wrapped = base.SyncAPIClient.__dict__["request"]
    ravi_otel.uninstrument()
    assert wrapped.__wrapped__ is base.SyncAPIClient.__dict__["request"]


def test_a_copy_is_loaded_as_without_us(client):
    alone = imported_again(client[0])._base_client
    ravi_otel.instrument()
    copy = imported_again(client[0])._base_client
    assert type(copy.__loader__) is type(alone.__loader__)
    assert copy.__spec__.loader is copy.__loader__
    assert importlib.util.find_spec(copy.__name__).origin == copy.__file__


def test_the_import_succeeds_when_what_is_found_cannot_be_wrapped(client, caplog):
    name = f"{client[0]}._base_client"
    ravi_otel.instrument()
    forget(client[0])

    class Empty:
        def find_spec(self, wanted, path=None, target=None):
            return importlib.machinery.ModuleSpec(wanted, self, origin="nowhere") if wanted == name else None

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            module.SyncAPIClient = type("SyncAPIClient", (), {})

    finder = Empty()
    sys.meta_path.insert(1, finder)
    try:
        importlib.import_module(name.partition(".")[0])
    except ImportError:
        pass  # the package itself misses what was in there
    finally:
        sys.meta_path.remove(finder)
    assert "cannot be instrumented" in caplog.text


def test_a_version_that_is_not_supported_is_named_where_it_could_be_wrapped(client, monkeypatch):
    name = client[0]
    ravi_otel.instrument()
    assert outside() == []
    monkeypatch.setattr(sys.modules[name], "__version__", "0.1.0")
    (said,) = outside()
    assert said.startswith(f"{name} 0.1.0 is outside {name}>=")
