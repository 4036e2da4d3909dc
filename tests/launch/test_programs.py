"""Ten kinds of programs: attached or said not to be, same output and exit status as without us where no limit is hit."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from kinds import ATTACHED, UNATTACHED
from launched import launch_in

USUAL = {"threads", "forked_workers"}
"""What is launched in every run of the tests; all kinds by `make programs`, and with RAVI_LONG=1."""


@pytest.mark.parametrize("kind", [kind for kind in ATTACHED if os.environ.get("RAVI_LONG") or kind.__name__ in USUAL])
def test_a_program_that_hits_no_limit_does_what_it_did_without_us(desk, kind):
    command = kind(desk)
    alone = desk.alone(*command)
    sent = desk.sent
    ours = desk.launch(*command, flags=["--limit", "requests=1000"])
    assert (ours.status, ours.out) == (alone.status, alone.out), ours.err
    assert ours.err.startswith(alone.err.splitlines(keepends=True)[0] if alone.err and "Traceback" not in alone.err else "")
    assert desk.sent == 2 * sent
    assert "NOT in force" not in ours.report
    (budget,) = ours.run["budgets"]
    assert (budget["used"], budget["held"]) == (sent, 0)


@pytest.mark.parametrize("kind", UNATTACHED)
def test_a_program_that_cannot_be_attached_is_said_to_run_without_limits(desk, kind):
    done = desk.launch(*kind(desk), flags=["--limit", "requests=1000"])
    assert done.status == 5
    assert "NOT in force" in done.report
    assert done.run["outcome"] == "unattached"


def test_without_limits_what_cannot_be_attached_keeps_its_status(desk):
    done = desk.launch("false")
    assert done.status == 1
    assert "was not observed" in done.report


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Be a Python that has never heard of us."""
    place = tmp_path_factory.mktemp("stranger")
    venv.create(place, symlinks=True)
    return place / "bin" / "python"


def test_another_python_that_lacks_us_is_not_started(desk, stranger):
    done = desk.launch(str(stranger), "-c", "open('started', 'w')", flags=["--limit", "requests=1"])
    assert done.status == 2
    assert f"{stranger} -m pip install ravi-otel==" in done.err
    assert not (desk.directory / "started").exists()
    assert not (desk.store / "runs.db").exists()


def test_another_python_that_lacks_us_deeper_down_is_said_to_be_free_when_it_imports_the_client(desk, stranger):
    (desk.directory / "openai.py").write_text("")
    done = desk.launch("sh", "-c", f"{stranger} -c 'import openai; print(1)'", flags=["--limit", "requests=1"])
    assert (done.status, done.out) == (5, "1\n")
    assert "limits are not in force" in done.err
    assert "NOT in force" in done.report


def test_another_python_that_lacks_us_and_calls_no_model_is_nobodys_concern(desk, stranger):
    code = f"import subprocess; subprocess.run([{str(stranger)!r}, '-c', 'print(1)'], check=True)"
    done = desk.launch(sys.executable, "-c", code, flags=["--limit", "requests=1"])
    assert (done.status, done.out) == (0, "1\n"), done.err
    assert "in force" not in done.err


IMPORTS = {
    "asked for and not imported": "import importlib.util; importlib.util.find_spec('openai')",
    "imported at the second try": "import sys; there = sys.path[:]; sys.path[:] = [p for p in there if 'site-packages' not in p]\n"
    "try:\n    import openai\nexcept ImportError:\n    sys.path[:] = there",
    "imported twice": "import openai, sys; [sys.modules.pop(name) for name in list(sys.modules) if name.split('.')[0] == 'openai']",
    "without its environment": "import os; [os.environ.pop(name) for name in list(os.environ) if name.startswith(('RAVI', 'PYTHON'))]",
    "under a setup of the program's own": "import ravi_otel; ravi_otel.instrument(); import openai; ravi_otel.uninstrument()",
}


@pytest.mark.parametrize("way", IMPORTS)
def test_however_the_client_is_imported_the_limit_holds(desk, way):
    (desk.directory / "odd.py").write_text(IMPORTS[way] + "\n" + Path(desk.program("calls")[1]).read_text())
    done = desk.launch(sys.executable, "odd.py", "5", flags=["--limit", "requests=2"])
    assert (desk.sent, done.status) == (2, 4), done.err


def test_a_client_we_cannot_hold_is_said_to_be_free(desk):
    (desk.directory / "openai").mkdir()
    (desk.directory / "openai" / "__init__.py").write_text("__version__ = '0.28'\n")
    done = desk.launch(sys.executable, "-c", "import openai; print(openai.__version__)", flags=["--limit", "requests=2"])
    assert (done.status, done.out) == (5, "0.28\n"), done.err
    assert "NOT in force" in done.report


def test_a_file_of_the_programs_own_that_is_called_like_the_client_is_none(desk):
    (desk.directory / "openai.py").write_text("mine = True\n")
    done = desk.launch(sys.executable, "-c", "import openai; print(openai.mine)", flags=["--limit", "requests=2"])
    assert (done.status, done.out) == (0, "True\n"), done.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_standard_descriptors_that_are_closed_stay_closed(desk, closed):
    (desk.directory / "std.py").write_text("import sys; open('seen', 'w').write(f'{sys.stdin is None} {sys.stdout is None}')\n")
    seen = desk.directory / "seen"
    statuses = []
    for command in ([sys.executable, "std.py"], [*desk.command("--quiet"), sys.executable, "std.py"]):
        seen.unlink(missing_ok=True)
        shell = f"{' '.join(command)} {closed}"
        done = subprocess.run(["sh", "-c", shell], cwd=desk.directory, env=desk.environ, capture_output=True, check=False)
        statuses.append((done.returncode, seen.read_text()))
    assert statuses[0] == statuses[1]


def test_modules_of_the_program_that_are_called_like_pythons_own_stay_its_own(desk):
    (desk.directory / "app").mkdir()
    for name in ("json", "string", "random"):
        (desk.directory / "app" / f"{name}.py").write_text("mine = True\n")
    (desk.directory / "app" / "odd.py").write_text("import json, string, random; print(json.mine, string.mine, random.mine)\n")
    done = desk.launch(sys.executable, "app/odd.py", flags=["--limit", "requests=2"])
    assert (done.status, done.out) == (0, "True True True\n"), done.err


def test_what_was_inherited_with_a_number_is_inherited_on(desk):
    reading, writing = os.pipe()
    os.write(writing, b"hello")
    os.close(writing)
    try:
        done = subprocess.run(
            [*desk.command("--quiet"), sys.executable, "-c", f"import os; print(os.read({reading}, 9))"],
            env=desk.environ, cwd=desk.directory, pass_fds=(reading,), capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(reading)
    assert (done.returncode, done.stdout) == (0, "b'hello'\n"), done.stderr


def test_a_sitecustomize_of_the_programs_own_still_runs(desk):
    (desk.directory / "sitecustomize.py").write_text("print('mine first')\n")
    code = "import sitecustomize; print(sitecustomize.__file__)"
    done = desk.alone(*desk.command(), sys.executable, "-c", code, PYTHONPATH=str(desk.directory))
    # One of the two is the launcher's own: it is a Python with that path as well.
    assert sorted(done.out.splitlines()) == sorted(["mine first", "mine first", str(desk.directory / "sitecustomize.py")])


def test_auto_instrumentation_around_us_reaches_the_program(desk):
    around = [
        str(Path(sys.executable).with_name("opentelemetry-instrument")),
        "--traces_exporter",
        "none",
        "--metrics_exporter",
        "none",
        "--logs_exporter",
        "none",
    ]
    code = "import openai, opentelemetry.trace as t; print(type(t.get_tracer_provider()).__name__)"
    done = desk.alone(*around, *desk.command("--limit", "requests=1"), sys.executable, "-c", code)
    assert (done.status, done.out) == (0, "TracerProvider\n"), done.err


def test_a_python_process_that_never_imports_the_client_does_not_import_us(desk):
    code = "import sys; print([name for name in sys.modules if name.startswith(('ravi_otel', 'opentelemetry'))])"
    done = desk.launch(sys.executable, "-c", code, flags=["--limit", "requests=1"])
    assert (done.status, done.out) == (0, "[]\n"), done.err


def test_our_place_on_the_path_is_gone_before_the_program_looks(desk):
    done = desk.launch(sys.executable, "-c", "import sys; print([p for p in sys.path if 'launch' in p])")
    assert done.out == "[]\n"


def test_a_program_that_gevent_patched_is_limited(desk):
    patched = "from gevent import monkey; monkey.patch_all()"
    calls = "import runpy, sys; sys.argv[0:1] = []; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = desk.launch(sys.executable, "-c", f"{patched}; {calls}", *desk.program("calls", "3")[1:], flags=["--limit", "requests=1"])
    assert done.status == 4, done.err
    assert desk.sent == 1


def test_why_limits_are_not_in_force_is_said_in_a_sentence(desk):
    code = "import ravi_otel._setup as setup; setup._WRAPPED = None; import openai"
    done = desk.launch(sys.executable, "-c", code, flags=["--limit", "requests=1"])
    assert done.status == 5
    assert "limits are not in force: ravi-otel could not be started in it (TypeError: 'NoneType' object is not iterable).\n" in done.err


def test_a_run_inside_a_run_is_refused(desk):
    done = desk.launch(*desk.command("--limit", "requests=9"), *desk.program("calls", "1"), flags=["--limit", "requests=1"])
    assert done.status == 2
    assert "under `ravi-otel run` already" in done.err
    assert desk.sent == 0


def test_a_forking_server_shares_one_budget(desk, until):
    gunicorn = [sys.executable, "-m", "gunicorn", "--workers", "2", "--bind", "unix:web.sock", "--chdir", str(desk.directory), "web:app"]
    shutil.copy(desk.program("web")[1], desk.directory / "web.py")
    child = desk.start(*gunicorn, flags=["--limit", "requests=4", "--after-limit", "refuse"])
    try:
        until((desk.directory / "web.sock").exists)
        asked = [
            subprocess.run(
                [sys.executable, "-c", ASK, str(desk.directory / "web.sock")], capture_output=True, text=True, check=True, env=os.environ
            ).stdout
            for _ in range(2)
        ]
    finally:
        child.terminate()
        _, err = child.communicate(timeout=30)
    assert sorted("".join(asked).split()) == ["200"] * 4 + ["429"] * 4, err
    assert desk.sent == 4
    assert child.returncode == 0, err
    assert launch_in(desk.store)["budgets"][0]["used"] == 4


ASK = """
import socket, sys
for _ in range(4):
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(sys.argv[1])
        wire.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        answer = b"".join(iter(lambda: wire.recv(4096), b""))
    print(answer.split()[1].decode())
"""
