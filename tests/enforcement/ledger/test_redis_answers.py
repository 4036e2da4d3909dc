"""What the answers of a Redis mean, those that lie or never end too, and what becomes of a call where the machine gives no thread."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time

import anyio
import pytest
import redis_servers
import warm_starts

from ravi_otel._enforcement.ledger.redis import client as client_module
from ravi_otel._enforcement.ledger.redis.client import RedisClient, slot_of
from ravi_otel._enforcement.ledger.redis.messages import Script
from ravi_otel._enforcement.ledger.store_failures import StoreError
from ravi_otel._flow import run_async, run_sync
from ravi_otel.testing import ManualClock

COUNT = Script.of("count", b"return {redis.call('INCR', KEYS[1]), ARGV[1]}")

STORM = """
import random, signal, sys
from ravi_otel._flow import run_sync
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.messages import Script

class Boom(BaseException):
    pass

def boom(*_):
    global armed
    if armed:
        armed = False
        raise Boom

armed, rng = False, random.Random(1)
signal.signal(signal.SIGALRM, boom)
link = RedisClient(sys.argv[1])
script = Script.of("none", b"return 1")
run_sync(link.call(script, ["{k}"], [1, 2]))
fell = 0
for _ in range(int(sys.argv[2])):
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00002, 0.0006))
        for _ in range(1000):
            run_sync(link.call(script, ["{k}"], list(range(200))))
    except Boom:
        fell += 1
assert fell, "nothing was interrupted"
print("whole")
"""


def call(link, key="{k}", word="x"):
    return run_sync(link.call(COUNT, [key], [word]))


@pytest.fixture
def linked():
    made = []

    def link(url, **options):
        made.append(RedisClient(url, **options))
        return made[-1]

    yield link
    for each in made:
        each.close()


def test_what_is_said_may_be_text_bytes_or_a_number(linked, redis_server):
    link = linked(redis_server.url)
    assert run_sync(link.call(COUNT, ["{k}"], [1 << 70, True, b"raw"])) == [1, str(1 << 70).encode()]
    assert run_sync(link.call(COUNT, ["{k}"], [b"r\r\na\x00w"])) == [2, b"r\r\na\x00w"]


def test_a_signal_that_raises_in_the_middle_of_a_step_does_not_end_the_process(redis_server):
    storms = os.environ.get("RAVI_LONG", "60")
    done = warm_starts.run([sys.executable, "-c", STORM, redis_server.url, storms], timeout=600)
    assert (done.returncode, done.stdout.strip()) == (0, "whole"), done.stderr[-2000:]


def test_a_name_that_is_no_text_is_refused_and_harms_nobody_else(linked, redis_server):
    link = linked(redis_server.url)
    assert call(link) == [1, b"x"]
    for _ in range(4):
        with pytest.raises(StoreError, match="a name that is no text"):
            call(link, word="\ud800")
    assert not link.failing
    assert call(link) == [2, b"x"]


def test_who_must_log_in_since_a_while_is_told_so(linked):
    with redis_servers.server() as server:
        link = linked(server.url)
        call(link)
        assert server.say("CONFIG", "SET", "requirepass", "secret").startswith(b"+OK")
        link.close()
        for _ in range(4):
            with pytest.raises(StoreError) as caught:
                run_sync(link.call(COUNT, ["{k}"], ["x"] * 12))  # a command of so many words ends the connection, too
            assert caught.value.why == "because it does not let this user in"
        assert all(not each._idle for each in link._servers.values())  # what the server closed is lent to nobody
        assert not link.failing


def test_who_must_log_in_since_the_server_was_away_is_told_so(linked):
    with redis_servers.server() as server:
        clock = ManualClock()
        link = linked(server.url, clock=clock)
        call(link)
        server.kill()
        for _ in range(4):
            with pytest.raises(StoreError):
                call(link)
        assert link.failing
        server.start()
        assert server.say("CONFIG", "SET", "requirepass", "secret").startswith(b"+OK")

        def is_told():
            clock.advance(20)
            with pytest.raises(StoreError) as caught:
                call(link)
            return caught.value.why == "because it does not let this user in"

        redis_servers.until(is_told, "it was never said what is wrong")
        assert not link.failing


@pytest.fixture
def threadless(monkeypatch):
    """Give no thread any more, as a machine does that has none left."""

    def none(_):
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", none)


def test_where_no_thread_can_be_started_nobody_connects_in_the_middle_of_a_call(linked, redis_server, threadless, monkeypatch):
    link = linked(redis_server.url)
    assert call(link) == [1, b"x"]
    opened = []
    monkeypatch.setattr(client_module, "connect", lambda *_: opened.append(1))
    link.close()
    threadless()
    said = []
    for _ in range(5):
        with pytest.raises(StoreError) as caught:
            call(link)
        said.append(caught.value.why)
    assert said == ["because no thread can be started to reach it"] * 3 + ["because it has not answered lately"] * 2
    assert not opened


def test_a_probe_that_no_thread_can_make_has_failed(linked, redis_server, threadless):
    clock = ManualClock()
    link = linked(redis_server.url, clock=clock)
    threadless()
    for _ in range(3):
        with pytest.raises(StoreError):
            call(link)
    for pause in (0.25, 0.5):
        clock.advance(pause)
        with pytest.raises(StoreError, match="has not answered lately"):
            call(link)
    (made,) = link._servers.values()
    clock.advance(0.5)
    assert made.breaker.look() == "refuse"  # twice as long after each probe
    clock.advance(0.5)
    assert made.breaker.look() == "probe"


def test_a_slot_that_is_moved_is_refused_by_itself_and_others_go_on(linked):
    with contextlib.ExitStack() as stack:
        home, goal = (stack.enter_context(redis_servers.server("--cluster-enabled", "yes")) for _ in range(2))
        assert home.say("CLUSTER", "ADDSLOTS", *map(str, range(16_384))).startswith(b"+OK")
        assert home.say("CLUSTER", "MEET", "127.0.0.1", str(goal.port)).startswith(b"+OK")
        redis_servers.until(lambda: b"cluster_slots_ok:16384" in goal.say("CLUSTER", "INFO"), "the servers did not meet")
        redis_servers.until(lambda: b"cluster_state:ok" in goal.say("CLUSTER", "INFO"), "the Cluster is not well")
        redis_servers.until(lambda: b"cluster_state:ok" in home.say("CLUSTER", "INFO"), "the Cluster is not well")
        here, there = (node.say("CLUSTER", "MYID").split()[1].decode() for node in (home, goal))
        slot = str(slot_of("{moves}"))
        assert goal.say("CLUSTER", "SETSLOT", slot, "IMPORTING", here).startswith(b"+OK")
        assert home.say("CLUSTER", "SETSLOT", slot, "MIGRATING", there).startswith(b"+OK")
        link = linked(f"redis+cluster://127.0.0.1:{home.port}?timeout_s=10")
        for count in range(1, 6):
            assert call(link, "{stays}")[0] == count
            with pytest.raises(StoreError, match="being moved to another server") as caught:
                run_sync(link.call(COUNT, ["{moves}a", "{moves}b"], ["x"]))
            assert "ends when all of it is there" in link.sentence(caught.value)
        assert not link.failing
        assert call(link, "{moves}")[0] == 1  # one key is asked for where it goes, whose server has not seen the script


# -- answers that lie, or never end -------------------------------------------------------------------------------


class Liar:
    """Be a server that lets everybody in, and answers every script with what it was made for: bytes, or a function that sends them."""

    def __init__(self, answer):
        self._answer = answer
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, peer):
        with peer, contextlib.suppress(OSError):
            while asked := peer.recv(65_536):
                if b"EVAL" not in asked:
                    peer.sendall(b"+OK\r\n")
                elif callable(self._answer):
                    self._answer(peer, self.ended)
                else:
                    peer.sendall(self._answer)

    def close(self):
        self.ended.set()
        self._listener.close()


def drip(peer, ended):
    peer.sendall(b"$30000\r\n")  # takes minutes
    while not ended.wait(0.005):
        peer.sendall(b"x")


@pytest.fixture
def lying(linked):
    """Give a way to a server that answers so."""
    liars = []

    def made(answer, **options):
        liars.append(Liar(answer))
        return linked(liars[-1].url, **options)

    yield made
    for each in liars:
        each.close()


def in_trio(coroutine):
    return anyio.run(lambda: coroutine, backend="trio")


async def why(link):
    try:
        return await run_async(link.call(COUNT, ["{k}"], ["x"]))
    except StoreError as error:
        return error.why


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_an_answer_that_comes_byte_by_byte_is_not_waited_for_beyond_the_deadline(lying, first):
    link = lying(drip, timeout_s=0.05)
    began = time.monotonic()
    with pytest.raises(StoreError, match="does not answer in time"):
        run_sync(link.call(COUNT, ["{k}"], ["x"], first=first))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("run", [asyncio.run, in_trio], ids=["asyncio", "trio"])
def test_a_loop_goes_on_while_an_answer_comes_byte_by_byte(lying, run):
    link = lying(drip, timeout_s=0.1)

    async def both():
        turns, ended = 0, anyio.Event()

        async def turn():
            nonlocal turns
            while not ended.is_set():
                await anyio.sleep(0.001)
                turns += 1

        async with anyio.create_task_group() as group:
            group.start_soon(turn)
            said = await why(link)
            ended.set()
        assert said == "because it does not answer in time"
        assert turns > 5

    run(both())


LIES = (
    b"*2147483647\r\n",
    b"*1\r\n" * 50,
    b"*1\r\n" * 5_000,
    b"$2147483647\r\n",
    b"$x\r\n",
    b":1e9\r\n",
    b":\r\n",
    b"$1\r\na\r\n$1\r\nb\r\n",
    b"%1\r\n",
    b"\r\n\r\n",
    b"+" + b"x" * 9000,
    b":1\r\n:2\r\n",
)


@pytest.mark.parametrize("run", [asyncio.run, in_trio], ids=["asyncio", "trio"])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: repr(lie[:20]))
def test_what_is_no_answer_is_refused_in_time_and_its_connection_is_lent_to_nobody(lying, lie, run):
    link = lying(lie, timeout_s=0.2)
    began = time.monotonic()
    assert run(why(link)) in (
        "because it answers what no server of ours says",
        "because it does not answer in time",
        "because the connection to it ended",
    )
    assert time.monotonic() - began < 5
    assert all(not each._idle for each in link._servers.values())


def test_an_answer_with_no_end_is_refused_when_it_is_longer_than_any_we_ask_for(lying, monkeypatch):
    monkeypatch.setattr(client_module, "_MOST_BYTES", 1 << 20)

    def endless(peer, ended):
        peer.sendall(b"*1000000\r\n")
        while not ended.is_set():
            peer.sendall(b"$1000\r\n%b\r\n" % (b"x" * 1_000))

    link = lying(endless, timeout_s=30)
    assert asyncio.run(why(link)) == "because it answers what no server of ours says"


WHOLE = (
    (b"+PONG\r\n", b"PONG"),
    (b"$0\r\n\r\n", b""),
    (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b":-7\r\n", -7),
    (b"*3\r\n*2\r\n:1\r\n$-1\r\n*0\r\n*1\r\n*1\r\n$2\r\nab\r\n", [[1, None], [], [[b"ab"]]]),
)


@pytest.mark.parametrize(("said", "meant"), WHOLE, ids=lambda each: repr(each)[:20])
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(lying, said, meant):
    def in_pieces(peer, ended):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(said)):
            peer.sendall(said[at : at + 1])
            ended.wait(0.001)

    link = lying(in_pieces, timeout_s=10)
    assert run_sync(link.call(COUNT, ["{k}"], ["x"])) == meant
    assert asyncio.run(why(link)) == meant
    assert in_trio(why(link)) == meant
    assert sum(len(each._idle) for each in link._servers.values()) == 1
