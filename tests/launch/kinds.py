"""Commands that start the same few calls in every way programs are started."""

import shutil
import sys
from pathlib import Path


def script(desk):
    return desk.program("calls", "2")


def module(desk):
    shutil.copy(desk.program("calls")[1], desk.directory / "my_module.py")
    return [sys.executable, "-m", "my_module", "2"]


def console_script(desk):
    path = desk.directory / "my-tool"
    path.write_text(f"#!{sys.executable}\n" + Path(desk.program("calls")[1]).read_text())
    path.chmod(0o755)
    return [str(path), "2"]


def through_a_shell(desk):
    return ["sh", "-c", f"{sys.executable} {desk.program('calls')[1]} 1; {sys.executable} {desk.program('calls')[1]} 1"]


def threads(desk):
    return desk.program("threads")


def tasks(desk):
    return desk.program("tasks")


def forked_workers(desk):
    return desk.program("workers", "fork", "4")


def spawned_workers(desk):
    return desk.program("workers", "spawn", "4")


def own_provider(desk):
    return desk.program("own_provider")


def own_hook(desk):
    return desk.program("own_hook")


def inside_of_auto_instrumentation(desk):
    return [
        str(Path(sys.executable).with_name("opentelemetry-instrument")),
        "--traces_exporter",
        "none",
        "--metrics_exporter",
        "none",
        "--logs_exporter",
        "none",
        *desk.program("calls", "2"),
    ]


def its_own_status(desk):
    return desk.program("exits", "3")


def out_by_the_back_door(desk):
    return desk.program("exits", "_exit", "6")


ATTACHED = [
    script,
    module,
    console_script,
    through_a_shell,
    threads,
    tasks,
    forked_workers,
    spawned_workers,
    own_provider,
    own_hook,
    inside_of_auto_instrumentation,
    its_own_status,
    out_by_the_back_door,
]


def isolated(desk):
    return [sys.executable, "-I", *desk.program("calls", "1")[1:]]


def no_environment(desk):
    return [sys.executable, "-E", *desk.program("calls", "1")[1:]]


def no_site(desk):
    code = "import sys; sys.path[:] = %r; import openai; openai.OpenAI().chat.completions.create(model='m', messages=[])"
    return [sys.executable, "-S", "-c", code % (sys.path,)]


def static_binary(desk):
    return ["true"]


UNATTACHED = [isolated, no_environment, no_site, static_binary]
