"""The way to Redis: scripts in every colour, connections of this process alone, and what befalls them."""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest
import redis_servers
import trio
import warm_starts

from ravi_otel._enforcement.ledger.redis import client as client_module
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.messages import Script
from ravi_otel._enforcement.ledger.store_failures import StoreError
from ravi_otel._flow import run_async, run_sync
from ravi_otel.testing import ManualClock

COUNT = Script.of("count", b"return {redis.call('INCR', KEYS[1]), ARGV[1]}")
WRONG = Script.of("wrong", b"return redis.call('NOSUCHCOMMAND')")
PAUSE_S = 0.25


def in_asyncio(flow):
    return asyncio.run(run_async(flow))


def in_trio(flow):
    return trio.run(run_async, flow)


COLOURS = pytest.mark.parametrize("run", [run_sync, in_asyncio, in_trio])


@pytest.fixture
def linked():
    """Open links, and close them at the end."""
    with contextlib.ExitStack() as stack:

        def client(url, **options):
            made = RedisClient(url, **options)
            stack.callback(made.close)
            return made

        yield client


@pytest.fixture
def client(linked, redis_server):
    return linked(redis_server.url)


def count(client, key="{k}", run=run_sync, word="x"):
    return run(client.call(COUNT, [key], [word]))[0]


def why(client, run=run_sync):
    with pytest.raises(StoreError) as caught:
        count(client, run=run)
    return caught.value.why


def connections(server):
    return server.say("CLIENT", "LIST").count(b"id=") - 1


# -- calls --------------------------------------------------------------------------------------------------------


@COLOURS
def test_a_script_answers_in_every_colour(client, run):
    assert run(client.call(COUNT, ["{k}"], ["größe"])) == [1, "größe".encode()]


@COLOURS
def test_the_first_call_alone_has_time_to_connect_and_bring_its_script(linked, redis_server, run):
    redis_server.say("SCRIPT", "FLUSH")
    client = linked(redis_server.url, timeout_s=1e-9)
    assert count(client, run=run) == 1
    client.close()
    with redis_server.paused():  # else a server that is quick may have answered before anybody looks at the clock
        assert "does not answer in time" in why(client, run=run)


@COLOURS
def test_a_script_that_the_server_lost_is_sent_again(client, redis_server, run):
    assert count(client) == 1
    redis_server.say("SCRIPT", "FLUSH")
    assert count(client, run=run) == 2


def test_one_connection_serves_threads_and_loops_alike(client, redis_server):
    for run in (run_sync, in_asyncio, in_trio, in_asyncio):
        count(client, run=run)
    assert connections(redis_server) == 1


def test_many_tasks_share_a_few_connections(client, redis_server):
    async def all_at_once():
        await asyncio.gather(*(run_async(client.call(COUNT, ["{k}"], [str(each)])) for each in range(300)))

    asyncio.run(all_at_once())
    assert count(client) == 301
    assert connections(redis_server) <= 16


def test_threads_get_their_own_answers(client):
    wrong = []

    def ask(name):
        for number in range(50):
            word = f"{name}-{number}"
            if run_sync(client.call(COUNT, ["{k}"], [word]))[1] != word.encode():
                wrong.append(word)

    threads = [threading.Thread(target=ask, args=(each,)) for each in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert count(client) == 401


def test_what_was_asked_by_a_cancelled_task_is_not_answered_to_the_next(linked, proxy):
    client = linked(proxy.url, timeout_s=10)
    count(client)

    async def cancelled():
        while proxy.came.acquire(blocking=False):
            pass
        proxy.passing.clear()
        task = asyncio.create_task(run_async(client.call(COUNT, ["{k}"], ["mine"])))
        await asyncio.to_thread(proxy.came.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.passing.set()
        return await run_async(client.call(COUNT, ["{k}"], ["another's"]))

    assert asyncio.run(cancelled()) == [3, b"another's"]


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_an_error_of_a_script_is_said_and_not_taken_for_a_failing_server(client):
    for _ in range(4):
        with pytest.raises(StoreError, match="because it answered"):
            run_sync(client.call(WRONG, ["{k}"], []))
    assert not client.failing


@COLOURS
def test_a_server_that_was_started_again_is_found_without_a_failure(linked, run):
    with redis_servers.server() as server:
        client = linked(server.url)
        assert count(client) == 1
        server.kill()
        server.start()
        assert count(client, run=run) == 1


@COLOURS
def test_a_dropped_answer_is_asked_for_once_more(linked, proxy, run):
    client = linked(proxy.url, timeout_s=10)
    count(client)
    proxy.cut = 1
    assert count(client, run=run) == 3  # the first one arrived: whoever asks names the operation
    assert proxy.lost == 1


@COLOURS
def test_a_server_that_is_silent_is_given_up_after_three_calls(linked, run):
    clock = ManualClock()
    with redis_servers.server() as server:
        client = linked(server.quick_url, timeout_s=0.02, clock=clock)
        server_ = client._server(None)
        server_.give_back(run_sync(server_.lend(time.monotonic() + 10))[0])  # it was there
        with server.paused():
            assert [why(client, run) for _ in range(3)] == ["because it does not answer in time"] * 3
            assert client.failing
            assert why(client, run) == "because it has not answered lately"


@COLOURS
def test_a_call_waits_for_a_server_that_was_late_until_it_answers_again(linked, run):
    clock = ManualClock()  # it stands still: no pause is ever over
    with redis_servers.server() as server:
        client = linked(server.quick_url, timeout_s=30, clock=clock)
        assert count(client, run=run) == 1
        client.timeout_s = 0.02
        with server.paused():
            assert [why(client, run) for _ in range(3)] == ["because it does not answer in time"] * 3
            assert client.failing
        client.timeout_s = 30
        assert count(client, run=run) > 0
        assert not client.failing


def _awaiting_in_thread(step):
    return step.blocking()


def _awaiting_in_task(step):
    return asyncio.run(step.awaiting())


@pytest.mark.parametrize("wait", [_awaiting_in_thread, _awaiting_in_task], ids=["thread", "task"])
def test_a_call_that_comes_to_wait_after_the_probe_was_answered_goes_on_at_once(linked, wait):
    with redis_servers.server() as server:
        client = linked(server.quick_url, timeout_s=30, clock=ManualClock())
        assert count(client) == 1
        client.timeout_s = 0.02
        with server.paused():
            assert [why(client) for _ in range(3)] == ["because it does not answer in time"] * 3
        began = time.monotonic()
        step = next(client._server(None).lend(began + 30))  # it has had a thread ask, and is now kept from the processor
        redis_servers.until(lambda: not client.failing, "the probe was not answered")
        connection, _ = wait(step)
        assert run_sync(connection.ask(("PING",), time.monotonic() + 10)) == b"PONG"
        assert time.monotonic() - began < 20
        client._server(None).give_back(connection)


def test_a_probe_that_fails_sends_nobody_away_once_another_was_answered(linked, monkeypatch):
    with redis_servers.server() as server:
        client = linked(server.quick_url, timeout_s=30)
        way = client._server(None)
        lent = [run_sync(way.lend(time.monotonic() + 30))[0] for _ in range(client_module.MOST_FOR_TASKS)]
        for _ in range(3):
            way.breaker.failed(late=True)
        assert way.breaker.look() == "probe"
        way.breaker.succeeded()  # a call that was under way brought an answer

        async def asked():
            waiting = asyncio.create_task(run_async(client.call(COUNT, ["{k}"], [""])))
            await asyncio.to_thread(redis_servers.until, lambda: way._turns, "it did not come to wait")
            with server.paused(), monkeypatch.context() as patch:
                patch.setattr(client_module, "_OPENING_S", 0.05)
                way._probe()
            for each in lent:
                way.give_back(each)
            return await waiting

        assert asyncio.run(asked())[0] == 1


def test_nothing_is_asked_of_a_server_that_was_given_up_until_a_probe_is_answered(linked):
    clock = ManualClock()
    with redis_servers.server() as server:
        port, client = server.port, linked(server.url, clock=clock)
        server.kill()
        assert [why(client) for _ in range(3)] == ["because it cannot be reached"] * 3
        server.start()
        assert why(client) == "because it has not answered lately"
        clock.advance(PAUSE_S)
        assert why(client) == "because it has not answered lately"  # this one had a thread ask
        redis_servers.until(lambda: not client.failing, "it was not asked again")
        assert server.port == port
        redis_servers.until(lambda: run_sync(client.call(COUNT, ["{k}"], [""])), "it did not answer")


def test_a_probe_that_fails_makes_the_pause_longer(linked):
    clock = ManualClock()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        client = linked(f"redis://127.0.0.1:{nobody.getsockname()[1]}")
        client._clock = clock
    for _ in range(3):
        why(client)
    breaker = client._server(None).breaker
    for pause_s in (0.25, 0.5, 1.0):
        clock.advance(pause_s)
        assert breaker.look() == "probe"
        assert breaker.look() == "refuse"  # one is enough
        breaker.failed(probe=True)
    clock.advance(1.0)
    assert breaker.look() == "refuse"


def test_tasks_that_wait_for_a_connection_are_sent_away_when_the_server_is_given_up(linked):
    async def all_at_once(client):
        asked = (run_async(client.call(COUNT, ["{k}"], [""])) for _ in range(100))
        return await asyncio.gather(*asked, return_exceptions=True)

    with redis_servers.server() as server:
        client = linked(server.quick_url, clock=ManualClock())
        with server.paused():
            answers = asyncio.run(all_at_once(client))
    assert {type(answer).__mro__[1] for answer in answers} == {StoreError}


def test_a_call_that_blocks_an_event_loop_does_not_wait_for_a_task_of_that_loop(linked, proxy):
    client = linked(proxy.url, timeout_s=10)

    async def blocked():
        count(client)
        proxy.passing.clear()
        tasks = [asyncio.create_task(run_async(client.call(COUNT, ["{k}"], [""]))) for _ in range(20)]
        for _ in range(16):
            await asyncio.to_thread(proxy.came.acquire)
        proxy.passing.set()
        count(client)
        await asyncio.gather(*tasks)

    asyncio.run(blocked())
    assert count(client) == 23


@pytest.fixture(scope="session")
def silent():
    """A port where connections are accepted by the machine, and nobody says a word for longer than a thread tries."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
        redis_servers.until(lambda: not any(each.name == "ravi-ledger-redis" for each in threading.enumerate()), "a thread still tries")


@COLOURS
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster", "names"])
def test_a_call_ends_in_time_whatever_hangs_while_it_connects(linked, silent, monkeypatch, scheme, run):
    if scheme == "names":
        ended = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(30) and [])
    url = f"{'redis' if scheme == 'names' else scheme}://:secret@127.0.0.1:{silent}"
    client = linked(f"{url}/main" if scheme == "redis+sentinel" else url)
    began = time.monotonic()
    with pytest.raises(StoreError, match="does not answer in time"):
        run(client.call(COUNT, ["{k}"], [""], first=False))
    took_s = time.monotonic() - began
    if scheme == "names":
        ended.set()
    assert took_s < 1.5  # 0.05 is the bound, and 0.06 what it takes where nothing else runs; to open a connection may take 2


# -- processes ----------------------------------------------------------------------------------------------------

FORKS = """
import os, sys
from ravi_otel._flow import run_sync
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.messages import Script
script = Script.of("count", b"return redis.call('INCR', KEYS[1])")
client = RedisClient(sys.argv[1])
run_sync(client.call(script, ["{k}"], []))
for _ in range(5):
    child = os.fork()
    if not child:
        os._exit(0 if run_sync(client.call(script, ["{k}"], [])) else 1)
    run_sync(client.call(script, ["{k}"], []))
    assert os.waitpid(child, 0)[1] == 0
print(run_sync(client.call(script, ["{k}"], [])))
"""


def test_a_forked_child_has_connections_of_its_own(redis_server):
    ran = warm_starts.run([sys.executable, "-W", "error", "-c", FORKS, redis_server.url])
    assert (ran.stdout, ran.stderr) == ("12\n", "")


# -- servers of every kind ----------------------------------------------------------------------------------------


@COLOURS
def test_a_socket_of_the_file_system_is_a_way_too(linked, run, tmp_path):
    path = os.path.relpath(tmp_path / "redis.sock")  # the whole path may be longer than a socket's may be
    with redis_servers.server(*redis_servers.FORGETFUL, "--unixsocket", str(tmp_path / "redis.sock")):
        assert len(path) < 200
        assert count(linked(f"unix://{tmp_path}/redis.sock?timeout_s=10"), run=run) == 1


@COLOURS
def test_a_password_is_given_and_never_shown(linked, run):
    with redis_servers.server(*redis_servers.FORGETFUL, "--requirepass", "geheim") as server:
        place = f"127.0.0.1:{server.port}/3?timeout_s=10"
        assert count(linked(f"redis://:geheim@{place}"), run=run) == 1
        wrong = linked(f"redis://someone:verraten@{place}")
        with pytest.raises(StoreError) as caught:
            run(wrong.call(COUNT, ["{k}"], [""]))
        said = wrong.sentence(caught.value)
        assert "does not let this user in. Check the user and the password" in said
        assert "verraten" not in f"{said}{wrong.address!r}{caught.value!r}"


@pytest.mark.parametrize(
    ("scheme", "database", "said"),
    [
        ("redis", "/99", "out of range'. It runs, and does not take what it is asked: check the URL, such as its database,"),
        ("rediss", "", "See that the server runs, can be reached, and speaks TLS there."),
        ("redis+cluster", "", "cluster support disabled'. It runs, and does not take what it is asked: check the URL,"),
    ],
)
def test_the_way_out_is_that_of_what_is_wrong(linked, redis_server, scheme, database, said):
    client = linked(f"{scheme}://{redis_server.url.removeprefix('redis://').partition('?')[0].partition('/')[0]}{database}?timeout_s=1")
    with pytest.raises(StoreError) as caught:
        run_sync(client.call(COUNT, ["{k}"], [""]))
    assert said in client.sentence(caught.value)


@COLOURS
def test_what_is_encrypted_is_checked(linked, run, certificate):
    cert, key = certificate
    options = ("--tls-port", str(redis_servers.free_port()), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
    with redis_servers.server(*redis_servers.FORGETFUL, *options) as server:
        url = f"rediss://127.0.0.1:{options[1]}?timeout_s=10"
        assert count(linked(f"{url}&ssl_ca_certs={cert}"), run=run) == 1
        assert why(linked(url), run) == "because it cannot be reached"
        assert server.say("PING").startswith(b"+PONG")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate for loopback that signs itself."""
    redis_servers.require_tls()
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    subprocess.run(["openssl", "req", "-x509", *kind, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True)
    assert ssl.create_default_context(cafile=cert)
    return cert, key


@COLOURS
def test_a_cluster_is_asked_where_the_key_is(linked, redis_cluster, run):
    client = linked(redis_cluster.url)
    for key in ("{a}", "{b}", "{c}", "{d}"):
        before = count(client, key)
        assert count(client, key, run=run) == before + 1
    assert len(client._servers) == 3  # one of them by the URL alone: what it keeps is nowhere else


def test_slots_that_moved_are_found(linked, redis_cluster):
    client = linked(redis_cluster.url)
    before, slot = count(client, "{a}"), client_module.slot_of("{a}")
    for number, node in enumerate(redis_cluster.nodes, 1):
        client._slots[slot] = ("127.0.0.1", node.port)  # as if it had been there
        assert count(client, "{a}") == before + number


@pytest.mark.parametrize("endpoint", ["unknown-endpoint", "hostname"])
def test_a_cluster_that_names_its_servers_by_their_ports_alone_is_asked_where_the_key_is(linked, redis_cluster, endpoint):
    client = linked(redis_cluster.url)
    with contextlib.ExitStack() as stack:
        for node in redis_cluster.nodes:
            stack.callback(node.say, "CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")
            assert node.say("CONFIG", "SET", "cluster-preferred-endpoint-type", endpoint).startswith(b"+OK")
        assert [count(client, key) > 0 for key in ("{a}", "{b}", "{c}", "{d}")] == [True] * 4


def counted(client, key):
    """Count where the server answers in time; 0 where it does not."""
    with contextlib.suppress(StoreError):
        return count(client, key)
    return 0


def test_one_server_of_a_cluster_that_can_be_reached_is_enough_to_find_the_others_by(linked, redis_cluster):
    client = linked(redis_cluster.url.replace("127.0.0.1:", f"127.0.0.1:{redis_servers.free_port()},127.0.0.1:", 1))
    assert [count(client, key) > 0 for key in ("{a}", "{b}", "{c}", "{d}")] == [True] * 4


def test_a_cluster_is_asked_of_servers_that_answers_have_named_when_those_of_the_url_are_gone(linked, redis_cluster):
    proxy = redis_servers.Proxy(redis_cluster.nodes[0].port)
    client = linked(f"redis+cluster://127.0.0.1:{proxy.port}?timeout_s=10")
    before = {key: count(client, key) for key in ("{a}", "{b}", "{c}", "{d}")}
    proxy.close()
    client.close()
    for host in tuple(client._servers):  # as if each had failed once
        client._forget_slots(host)
    assert {key: count(client, key) - 1 for key in before} == before


def test_a_server_of_a_cluster_that_paused_is_asked_again(linked, redis_cluster):
    client = linked(redis_cluster.url.replace("timeout_s=10", "timeout_s=0.05"))
    redis_servers.until(lambda: counted(client, "{a}"), "the Cluster is not asked")
    _, port = client._slots.get(client_module.slot_of("{a}"), client.address.hosts[0])
    with next(node for node in redis_cluster.nodes if node.port == port).paused():  # for less than it takes the others to miss it
        redis_servers.until(lambda: not counted(client, "{a}") and client.failing, "it is asked all the same")
    redis_servers.until(lambda: counted(client, "{a}"), "it is not asked again")


def test_the_replica_that_became_the_master_is_found(linked, watched):
    client = linked(watched.url)
    assert count(client) == 1
    redis_servers.until(lambda: watched.replica.say("GET", "{k}") == b"$1\r\n1\r\n", "the replica did not hear of it")
    watched.fail_over()

    counted = []

    def goes_on():
        with contextlib.suppress(StoreError):  # the sentinels need their time
            counted.append(count(client))
        return counted

    redis_servers.until(goes_on, "it was not found")
    assert counted[0] >= 2  # more where an answer was lost: whoever asks names the operation
    redis_servers.until(lambda: b"%d\r\n" % counted[0] in watched.replica.say("GET", "{k}"), "the replica does not count")
