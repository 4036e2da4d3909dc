"""What names a ledger: a URL is read in full before anything is counted, and no password is ever told."""

import contextlib
import logging
from pathlib import Path

import pytest

import ravi_otel
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.choosing import MEMORY, lease_of, open_ledger, read_choice
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._runtime.config import effective, with_ledger
from ravi_otel._runtime.settings import Settings, service_of
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ScopeFacts

SECRET = "hunter2"


def read(url):
    return read_choice("RAVI_LEDGER", url)


# -- what is read -------------------------------------------------------------------------------------------------


def test_memory_is_this_process_alone():
    assert read(" memory: ") == MEMORY
    assert not MEMORY.many
    assert isinstance(open_ledger("memory:"), MemoryLedger)


@pytest.mark.parametrize("written", ["sqlite:{}", "sqlite://{}", "sqlite:///{}", "SQLite:{}?lease_s=30"])
def test_sqlite_counts_in_a_file_wherever_the_program_goes_later(tmp_path, monkeypatch, written):
    choice = read(written.format(tmp_path / "l.db"))
    assert choice.many
    ledger = choice.open(lease_s=2.0)
    assert isinstance(ledger, SqliteLedger)
    assert str(ledger.path) == str(tmp_path / "l.db")
    monkeypatch.chdir(tmp_path)
    assert read("sqlite:l.db").url == str(tmp_path / "l.db")


def test_sqlite_takes_the_home_folder_for_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read("sqlite:~/l.db").url == str(tmp_path / "l.db")


def test_opening_writes_nothing_and_reaches_nobody(tmp_path):
    read(f"sqlite:{tmp_path / 'l.db'}").open()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "link", "shown", "namespace"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0", "redis://localhost:6379/0", "default"),
        ("redis://h?namespace=a&db=3", "redis://h?db=3", "redis://h", "a"),
        (f"rediss://app:{SECRET}@h:1/2", f"rediss://app:{SECRET}@h:1/2", "rediss://***@h:1/2", "default"),
        (f"redis://:{SECRET}@[::1]:7/0", f"redis://:{SECRET}@[::1]:7/0", "redis://***@[::1]:7/0", "default"),
        ("unix:///run/redis.sock?db=1&namespace=n", "unix:///run/redis.sock?db=1", "unix:///run/redis.sock", "n"),
        (f"redis+sentinel://:{SECRET}@a:1,b/s", f"redis+sentinel://:{SECRET}@a:1,b/s", "redis+sentinel://***@a:1,b/s", "default"),
        ("redis+cluster://a:1,b:2?timeout_s=0.05", "redis+cluster://a:1,b:2?timeout_s=0.05", "redis+cluster://a:1,b:2", "default"),
        ("redis://h?sentinel_password=" + SECRET, "redis://h?sentinel_password=" + SECRET, "redis://h", "default"),
    ],
)  # fmt: skip
def test_redis_is_told_what_is_its_own(url, link, shown, namespace):
    choice = read(url)
    assert (choice.store, choice.url, choice.shown, choice.namespace) == ("redis", link, shown, namespace)
    assert SECRET not in repr(choice)
    assert read(choice.spelled) == choice


def test_options_go_along_to_another_process(tmp_path):
    for url in (f"sqlite:{tmp_path / 'l.db'}?keep_days=9&lease_s=2.5", f"redis://:{SECRET}@h/0?namespace=a%26b&keep_days=9&lease_s=7"):
        choice = read(url)
        assert choice.keep_days == 9
        again = read(choice.spelled)
        assert (again.url, again.namespace, again.keep_days, again.lease_s) == (choice.url, choice.namespace, 9, choice.lease_s)


def test_a_ledger_that_was_made_is_taken_as_it_is(tmp_path):
    made = SqliteLedger(tmp_path / "l.db")
    choice = read_choice("instrument(ledger)", made)
    assert choice.open() is made
    assert choice.many
    assert not read_choice("instrument(ledger)", MemoryLedger()).many


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("redi://h", "by 'redi' (did you mean 'redis'?)"),
        ("ledger.db", "by 'ledger.db'"),
        ("https://x", "by 'https'"),
        ("", "names no ledger that is known:"),
        ("sqlite:", "'sqlite:' names no file"),
        ("sqlite://host/x.db", "takes no host"),
        ("sqlite:/nowhere/at/all/x.db", "RAVI_LEDGER: sqlite='/nowhere/at/all/x.db': there is no folder '/nowhere/at/all'"),
        ("sqlite:x.db?namespace=a", "unknown here, because it goes with Redis only: there are keep_days, lease_s."),
        ("memory:x", "has nothing behind it"),
        ("memory:?lease_s=9", "an option 'lease_s', which is unknown here, because it goes with Redis only: it takes none."),
        ("redis://h?namespace=a&namespace=b", "says namespace twice"),
        ("redis://h?namespace=", "is empty"),
        ("redis://h?namespace=a%07", "has a control character"),
        ("redis://h?lease_s=0.1", "lease_s='0.1' must be seconds from 0.5 to 3,600"),
        ("redis://h?lease_s=nan", "must be seconds from"),
        ("redis://h?timeout_s=soon", "timeout_s= of the Redis store's URL is seconds"),
        ("redis://h?databse=1", "'databse', which is unknown here: there are keep_days, lease_s, namespace, timeout_s, db, "),
        ("redis://h?leas_s=9", "'leas_s', which is unknown here, did you mean 'lease_s': there are"),
        ("redis://h?namespce=x", "did you mean 'namespace'"),
        ("sqlite:x.db?leas_s=9", "did you mean 'lease_s'"),
        ("sqlite:x.db&lease_s=9", "RAVI_LEDGER=sqlite:x.db&lease_s=9 has an option behind '&' and no '?': write '?' before"),
        ("redis://h/0&namespace=a", "behind '&' and no '?'"),
        ("redis://h?ssl_keyfile=x", "'ssl_keyfile' is no parameter"),
        ("redis://h?x", "what is behind '?' cannot be read"),
        ("redis://h?" + "&".join(f"a{n}=1" for n in range(40)), "what is behind '?' cannot be read"),
        ("redis://h/\x1b[2J", "control characters"),
        ("redis://" + "h" * 3_000, "longer than 2048 characters"),
        (b"redis://h", "names no ledger"),
        (5, "RAVI_LEDGER=5 names no ledger"),
        (MemoryLedger, "names no ledger"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_sentence_that_names_it(given, said):
    with pytest.raises(ConfigurationError) as refused:
        read(given)
    text = str(refused.value)
    assert said in text
    assert text.startswith("RAVI_LEDGER")
    assert text.isprintable()


@pytest.mark.parametrize(
    "url",
    [
        f"redi://:{SECRET}@h/0",
        f"//:{SECRET}@h",
        f":{SECRET}@h",
        f"redis://:{SECRET}",
        f"redis://app:{SECRET}",
        f"redis://:{SECRET}?x=1@h",
        f"redis://:a@{SECRET}@h",
        f"redis://:{SECRET}#@h",
        f"redis://:{SECRET}/x@h/0",
        f"redis://h/0?password={SECRET}",
        f"redis://h/0?password=a@{SECRET}",
        f"redis://:{SECRET}@h/no-number",
        f"redis://:{SECRET}@h?lease_s=maybe",
        f"redis://:{SECRET}@h:port/0",
        f"redis+sentinel://:{SECRET}@h",
        f"redis://:{SECRET}@h/\x07",
        f"unix://{SECRET}@run",
        f"postgres://u:{SECRET}@h",
    ],
)
def test_no_password_is_told_by_an_error(url):
    with pytest.raises(ConfigurationError) as refused:
        read(url)
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(refused.value.__context__)


@pytest.mark.parametrize("written", ["0.4", "3601", "nan", "soon", "-1"])
def test_a_lease_is_a_time_within_reason(written):
    with pytest.raises(ConfigurationError, match="RAVI_LEASE_S"):
        lease_of(written)
    assert (lease_of(""), lease_of("2")) == (30.0, 2.0)


# -- which accounts many count in ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "limit", "shared"),
    [
        *[(scope, "tokens=5", scope in ("process", "tenant", "session", "run")) for scope in map(str, ScopeKind)],
        *[("run", limit, True) for limit in ("cost=1", "requests=5", "tool_calls=5", "tokens=5:admission=after", "charge.rows=5")],
        *[("run", limit, False) for limit in ("messages=5", "depth=5", "time=5s", "working=5s")],
    ],
)
def test_sums_of_the_scopes_that_live_in_many_processes_are_shared(scope, limit, shared):
    account = Account(parse_limit(limit), ScopeFacts("s", ScopeKind(scope)), origin=limit)
    assert account.is_shareable() is shared


# -- who says it --------------------------------------------------------------------------------------------------


def test_code_goes_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RAVI_LEDGER", f"sqlite:{tmp_path / 'a.db'}")
    with ravi_otel.instrument(ledger=f"sqlite:{tmp_path / 'b.db'}"):
        assert STATE.engine.ledger.path == tmp_path / "b.db"
    with ravi_otel.instrument():
        assert STATE.engine.ledger.path == tmp_path / "a.db"
    with ravi_otel.instrument(ledger="memory:"):
        assert isinstance(STATE.engine.ledger, MemoryLedger)


def test_a_flag_goes_before_the_environment(tmp_path):
    said = effective(environ={"RAVI_LEDGER": f"sqlite:{tmp_path / 'a.db'}"})
    assert (said.ledger.url, said.sources["ledger"]) == (str(tmp_path / "a.db"), "RAVI_LEDGER")
    flagged = with_ledger(said, "memory:")
    assert (flagged.ledger, flagged.sources["ledger"]) == (MEMORY, "--ledger")
    assert with_ledger(said, None) is said


def test_the_same_ledger_asked_for_again_changes_nothing(tmp_path):
    url = f"sqlite:{tmp_path / 'l.db'}"
    with ravi_otel.instrument(limits=["requests=5"], ledger=url) as first:
        assert ravi_otel.instrument(limits=["requests=5"], ledger=url) is first


def test_one_that_cannot_be_used_leaves_everything_as_it_is(monkeypatch):
    with ravi_otel.instrument(limits=["requests=5"]) as first:
        with pytest.raises(ConfigurationError, match=r"instrument\(ledger\)"):
            ravi_otel.instrument(ledger="nowhere:")
        assert ravi_otel.instrument() is first
    monkeypatch.setenv("RAVI_LEDGER", "nowhere:")
    engine = STATE.engine
    with pytest.raises(ConfigurationError, match="RAVI_LEDGER"):
        ravi_otel.instrument()
    assert STATE.engine is engine


def test_a_ledger_of_the_programs_own_stays_open(tmp_path):
    closed = []

    class Own(SqliteLedger):
        def close(self):
            closed.append(1)
            super().close()

    made = Own(tmp_path / "l.db")
    with ravi_otel.instrument(ledger=made):
        assert STATE.engine.ledger is made
    assert closed == []
    made.close()


def open_files():
    """Give the files that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the directory itself
            found.append(str(descriptor.readlink()))
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nobody tells here which files are open")
def test_uninstrument_closes_what_was_opened(tmp_path):
    path = tmp_path / "l.db"

    @ravi_otel.tool
    def work():
        return str(path) in open_files()

    with ravi_otel.instrument(limits=["tool_calls=2"], ledger=f"sqlite:{path}"):
        work()
        assert work()
    assert str(path) not in open_files()


# -- whose limits they are ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "service"),
    [
        ({}, "default"),
        ({"OTEL_SERVICE_NAME": "shop"}, "shop"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=1, service.name=my%20shop"}, "my shop"),
        ({"OTEL_SERVICE_NAME": " shop ", "OTEL_RESOURCE_ATTRIBUTES": "service.name=other"}, "shop"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=%0a"}, "default"),
        ({"OTEL_SERVICE_NAME": "x" * 300}, "default"),
    ],
)
def test_the_limits_of_the_process_are_those_of_its_service(tmp_path, environ, service):
    settings = Settings(ledger=read(f"sqlite:{tmp_path / 'l.db'}"))
    assert service_of(settings, None, environ) == service
    assert service_of(Settings(ledger=MEMORY), None, environ) is None
    assert service_of(Settings(), None, environ) is None


def test_a_second_instrumentation_goes_on_with_what_was_counted(tmp_path, caplog):
    @ravi_otel.tool
    def work():
        return True

    url = f"sqlite:{tmp_path / 'l.db'}"
    with caplog.at_level(logging.CRITICAL, "ravi_otel.limits"):
        with ravi_otel.instrument(limits=["tool_calls=3"], ledger=url):
            assert work()
            assert work()
        with ravi_otel.instrument(limits=["tool_calls=3"], ledger=url):
            assert work()
            with pytest.raises(ravi_otel.BudgetExhaustedError, match=r"3 of 3 tool calls used in service 'default'"):
                work()
    assert len(Engine().ledger) == 0
