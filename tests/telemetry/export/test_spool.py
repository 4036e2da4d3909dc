"""Batches that wait on disk through an outage."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import tracemalloc
from pathlib import Path

import pytest
from misbehaving import status

from ravi_otel._telemetry import providers
from ravi_otel._telemetry.export import DropCounters
from ravi_otel._telemetry.export import spool as spool_module
from ravi_otel._telemetry.export.sender import Batch
from ravi_otel._telemetry.export.spool import Spool, Spooling, spooling

ROOT = Path(__file__).parents[3]


class Kept:
    """Be spools on one directory, and what they lost."""

    def __init__(self, directory: Path, most_bytes: int = 1 << 20, age_s: float = 3_600) -> None:
        self.lost: dict[str, int] = {}
        self._settings = Spooling(directory, most_bytes, age_s)
        self._drops = DropCounters(lambda reason, amount: self.lost.update({reason: self.lost.get(reason, 0) + amount}), lambda: None)

    def spool(self) -> Spool:
        return Spool(self._settings, "traces", "0123456789abcdef", self._drops)


def batch(number: int, size: int = 100, items: int = 3, *, age_s: float = 0) -> Batch:
    return Batch("traces", bytes([number]) * size, items, time.time_ns() - int(age_s * 1e9) + number)


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_what_cannot_be_sent_waits_on_disk_and_goes_in_order_after_the_next_start(collector, exporting, spool):
    collector.otherwise = status(503)
    first = exporting(RAVI_EXPORT_SPOOL=str(spool))
    first.spans("one", "two")
    assert first.flush() is False
    first.spans("three")
    first.end()
    assert (first.lost, len(files(spool))) == ({}, 2)
    collector.otherwise = status(200)
    second = exporting(RAVI_EXPORT_SPOOL=str(spool))
    second.spans("four")
    collector.wait(lambda: len(collector.received) >= 3)
    assert second.flush() is True
    assert (sorted(collector.received), files(spool), second.lost) == (["four", "one", "three", "two"], [], {})
    assert [name for name in collector.received if name != "four"] == ["one", "two", "three"]


def test_after_an_outage_the_disk_is_emptied_by_the_process_that_filled_it(collector, exporting, spool):
    collector.answers.extend([status(503, headers={"retry-after": "0"})] * 2)
    exports = exporting(RAVI_EXPORT_SPOOL=str(spool))
    exports.spans("one")
    exports.flush()
    exports.spans("two")
    collector.wait(lambda: collector.received)
    assert exports.flush() is True
    assert (collector.received, files(spool)) == (["one", "two"], [])


def test_only_its_owner_can_read_the_directory_and_its_files(collector, exporting, spool):
    collector.otherwise = status(503)
    exports = exporting(RAVI_EXPORT_SPOOL=str(spool))
    exports.spans("one")
    exports.end()
    (file,) = files(spool)
    assert [oct(path.stat().st_mode & 0o777) for path in (spool, file.parent, file)] == ["0o700", "0o700", "0o600"]


def test_a_directory_that_others_may_use_is_refused_and_spans_are_sent_without_it(collector, exporting, spool, caplog):
    exports = exporting(RAVI_EXPORT_SPOOL=str(spool))
    exports.end()
    (directory,) = spool.iterdir()
    directory.chmod(0o777)
    again = exporting(RAVI_EXPORT_SPOOL=str(spool))
    again.spans("one")
    assert again.flush() is True
    assert "cannot be used: it holds a directory that others may use" in caplog.text


def test_a_file_that_was_damaged_is_counted_and_the_others_are_sent(collector, exporting, spool):
    collector.otherwise = status(503)
    exports = exporting(RAVI_EXPORT_SPOOL=str(spool))
    exports.spans("one")
    exports.flush()
    exports.spans("two")
    exports.end()
    damaged = files(spool)[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    collector.otherwise = status(200)
    again = exporting(RAVI_EXPORT_SPOOL=str(spool))
    collector.wait(lambda: collector.received)
    assert again.flush() is True
    assert (collector.received, again.lost) == (["two"], {"spool_corrupt": 1})


def test_a_spool_that_is_full_lets_the_oldest_go_and_counts_it(spool):
    kept = Kept(spool, most_bytes=1_000)
    writing = kept.spool()
    assert all(writing.put(batch(number, size=200)) for number in range(6))
    claim = kept.spool().oldest()
    assert claim is not None
    assert (claim.batch.body[0], kept.lost) == (2, {"spool_full": 6})
    claim.back()


def test_what_is_too_old_is_sent_for_a_while_and_then_taken_away_and_counted(spool):
    kept = Kept(spool, age_s=0.05)
    writing = kept.spool()
    writing.put(batch(1))
    until_s = time.monotonic() + 20
    while (claim := writing.oldest()) is not None and time.monotonic() < until_s:
        claim.back()
        writing = kept.spool()
    assert (claim, kept.lost, files(spool)) == (None, {"spool_expired": 3}, [])


def test_what_was_found_too_old_an_hour_ago_is_not_sent_and_counted(spool, monkeypatch):
    kept = Kept(spool, age_s=86_400)
    writing = kept.spool()
    writing.put(batch(1, age_s=90_000))
    claim = writing.oldest()
    assert claim is not None
    claim.back()
    now_s = time.time()
    monkeypatch.setattr(spool_module.time, "time", lambda: now_s + 3_700)
    assert (kept.spool().oldest(), kept.lost) == (None, {"spool_expired": 3})


@pytest.mark.parametrize("days", [2, -2])
def test_a_clock_that_is_set_takes_nothing_away_at_once(spool, monkeypatch, days):
    kept = Kept(spool, age_s=86_400)
    writing = kept.spool()
    writing.put(batch(1))
    now_s = time.time()
    monkeypatch.setattr(spool_module.time, "time", lambda: now_s + days * 86_400)
    for reading in [writing, kept.spool()]:
        claim = reading.oldest()
        assert claim is not None
        claim.back()
    assert kept.lost == {}


def test_a_batch_that_one_sends_is_left_alone_by_the_others_until_he_gives_it_back(spool):
    kept = Kept(spool)
    one, other = kept.spool(), kept.spool()
    one.put(batch(1))
    one.put(batch(2))
    first, second = one.oldest(), other.oldest()
    assert first is not None
    assert second is not None
    assert (first.batch.body[0], second.batch.body[0], one.oldest()) == (1, 2, None)
    second.done()
    first.back()
    again = other.oldest()
    assert again is not None
    assert again.batch == first.batch
    again.done()
    assert (other.oldest(), files(spool)) == (None, [])


def test_what_a_killed_process_was_sending_is_sent_by_the_next(spool):
    program = """
    import os, signal, sys, time
    from pathlib import Path
    from ravi_otel._telemetry.export import DropCounters
    from ravi_otel._telemetry.export.sender import Batch
    from ravi_otel._telemetry.export.spool import Spool, Spooling
    spool = Spool(Spooling(Path(sys.argv[1]), 1 << 20, 3600), "traces", "0123456789abcdef", DropCounters(print, print))
    spool.put(Batch("traces", b"body", 1, time.time_ns()))
    claim = spool.oldest()
    os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(spool)], cwd=ROOT, check=False)
    claim = Kept(spool).spool().oldest()
    assert claim is not None
    assert claim.batch.body == b"body"
    claim.done()


def test_processes_with_other_headers_do_not_send_each_others_batches(collector, exporting, spool):
    collector.otherwise = status(503)
    exports = exporting(RAVI_EXPORT_SPOOL=str(spool), OTEL_EXPORTER_OTLP_HEADERS="tenant=one")
    exports.spans("one")
    exports.end()
    collector.otherwise = status(200)
    other = exporting(RAVI_EXPORT_SPOOL=str(spool), OTEL_EXPORTER_OTLP_HEADERS="tenant=two")
    other.spans("two")
    assert other.flush() is True
    assert (collector.received, len(files(spool))) == (["two"], 1)
    assert "tenant" not in str(files(spool))


def test_a_disk_that_takes_nothing_leaves_batches_in_memory(collector, exporting, spool):
    collector.answers.append(status(503, headers={"retry-after": "0"}))
    exports = exporting(RAVI_EXPORT_SPOOL=str(spool))
    (directory,) = spool.iterdir()
    directory.rmdir()
    exports.spans("one")
    exports.flush()
    collector.wait(lambda: collector.received)
    assert (collector.received, exports.lost) == (["one"], {})


def test_a_batch_larger_than_the_whole_spool_may_be_stays_in_memory(spool):
    kept = Kept(spool, most_bytes=1_000)
    writing = kept.spool()
    assert writing.put(batch(1))
    assert writing.put(batch(2, size=1_000)) is False
    assert (len(files(spool)), kept.lost) == (1, {})


def test_nothing_that_is_not_the_spools_own_is_sent_counted_or_taken_away(spool):
    kept = Kept(spool, most_bytes=1_000)
    writing = kept.spool()
    ours = next(spool.iterdir())
    strangers = [spool / "Downloads" / "ubuntu.iso.part", spool / "notes.otlp", ours / "mine.part", ours / "0-1-1.otlp"]
    shared = spool / "logs-0123456789abcdef" / f"{1:020d}-1-000001.otlp"
    for stranger in [*strangers, shared]:
        stranger.parent.mkdir(exist_ok=True)
        stranger.write_bytes(b"x" * 2_000)
        os.utime(stranger, (0, 0))
    shared.parent.chmod(0o755)
    link, pipe = ours / f"{1:020d}-1-000001.otlp", ours / f"{2:020d}-1-000001.otlp"
    link.symlink_to(strangers[0])
    os.mkfifo(pipe)
    assert all(writing.put(batch(number)) for number in range(2))
    claims = [writing.oldest(), writing.oldest(), writing.oldest()]
    assert ([claim and claim.batch.body[0] for claim in claims], kept.lost) == ([0, 1, None], {})
    for claim in claims[:2]:
        assert claim is not None
        claim.done()
    assert all(os.path.lexists(each) for each in [*strangers, shared, link, pipe])


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_root_that_others_may_write_is_refused_in_one_error(collector, exporting, spool, caplog, mode):
    spool.mkdir()
    spool.chmod(mode)
    exports = exporting(RAVI_EXPORT_SPOOL=str(spool))
    exports.spans("one")
    assert exports.flush() is True
    assert (list(spool.iterdir()), caplog.text.count("cannot be used: others may write it (mode")) == ([], 1)


def test_a_root_of_another_user_is_refused(spool, monkeypatch):
    spool.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: spool.stat().st_uid + 1)
    with pytest.raises(ValueError, match=r"it belongs to user \d+; name a directory of user \d+, who runs this"):
        Kept(spool).spool()


def test_a_root_is_looked_at_again_when_it_is_used(spool):
    writing = Kept(spool).spool()
    assert writing.put(batch(1)) is True
    spool.chmod(0o777)
    assert (writing.put(batch(2)), writing.oldest(), len(files(spool))) == (False, None, 1)
    spool.chmod(0o700)
    claim = writing.oldest()
    assert claim is not None
    claim.back()


def test_nothing_is_written_or_sent_through_a_link_in_place_of_our_directory(spool, tmp_path):
    writing = Kept(spool).spool()
    elsewhere = tmp_path / "elsewhere"
    next(spool.iterdir()).rename(elsewhere)
    (spool / "traces-0123456789abcdef").symlink_to(elsewhere)
    assert (writing.put(batch(1)), writing.oldest(), files(elsewhere)) == (False, None, [])


def test_a_large_spool_is_not_listed_for_each_batch(spool, monkeypatch):
    listed = []
    for name in ["scandir", "listdir"]:
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path, real=real: (listed.append(path), real(path))[1])
    kept = Kept(spool, most_bytes=15_000)
    writing = kept.spool()
    assert all(writing.put(batch(number)) for number in range(200))
    while (claim := writing.oldest()) is not None:
        claim.done()
    assert (kept.lost["spool_full"] > 200, files(spool)) == (True, [])
    assert len(listed) < 60


def test_a_damaged_file_that_is_huge_is_not_read(spool):
    kept = Kept(spool, most_bytes=1 << 40)
    reading = kept.spool()
    directory = next(spool.iterdir())
    with (directory / f"{1:020d}-1-000001.otlp").open("wb") as file:
        file.truncate(17 << 20)
    with (directory / f"{2:020d}-1-000001.otlp").open("wb") as file:
        file.truncate(15 << 20)
    tracemalloc.start()
    try:
        assert reading.oldest() is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (kept.lost, files(spool)) == ({"spool_corrupt": 2}, [])
    assert peak < 1 << 20


@pytest.mark.parametrize("root", ["/proc/nope", "/dev/null"])
def test_a_root_that_cannot_be_used_is_said_once_for_all_signals(exporting, monkeypatch, caplog, root):
    exporting(RAVI_EXPORT_SPOOL=root)
    caplog.clear()
    signals = ["traces", "metrics", "logs"]
    built = providers.build(signals, signals, None, lambda _reason, _amount: None)
    for provider in built.providers.values():
        provider.shutdown()
    assert caplog.text.count(f"RAVI_EXPORT_SPOOL='{root}' cannot be used") == 1


def test_a_size_that_is_no_number_is_answered_in_mebibytes(monkeypatch, caplog, spool):
    monkeypatch.setenv("RAVI_EXPORT_SPOOL", str(spool))
    monkeypatch.setenv("RAVI_EXPORT_SPOOL_BYTES", "1MB")
    found = spooling()
    assert found is not None
    assert found.most_bytes == 256 << 20
    assert "RAVI_EXPORT_SPOOL_BYTES='1MB' is no number from 1 up; 256 MiB is used" in caplog.text


def test_what_came_while_a_collector_hung_is_on_disk_as_soon_as_the_request_is_given_up(collector, exporting, spool):
    collector.otherwise = collector.trickle()
    exports = exporting(RAVI_EXPORT_SPOOL=str(spool), OTEL_EXPORTER_OTLP_TIMEOUT="1", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    exports.spans("one")
    collector.wait(lambda: collector.requests == 1)
    exports.spans("two", "three", "four")
    assert exports.flush(5) is False
    collector.wait(lambda: collector.requests == 2)
    kept = b"".join(each.read_bytes() for each in files(spool))
    assert [name for name in ("one", "two", "three", "four") if name.encode() in kept] == ["one", "two", "three", "four"]
