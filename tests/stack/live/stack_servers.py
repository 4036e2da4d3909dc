"""The stack as real processes on loopback: collector, Prometheus, Alertmanager, Jaeger, Loki and a webhook, as compose.yaml has them.

    def test_a_call_is_counted(stack: Stack):
        run_program(..., **stack.environment())
        wait_for(lambda: stack.query("gen_ai_client_operation_duration_seconds_count"), "the call's metric")

`stack` is one stack for the whole session: name your own service (`stack.environment("my-test")`), clear the webhook, leave
every server running. A test that pauses or kills takes `with running_stack(...) as own:`, which starts another one: within a second
without Loki, within twelve with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from stack_answers import Answers
from stack_configs import COLLECTOR, INTERVALS, Configs
from stack_process import PORTS, Guard, ServerProcess
from webhook import Webhook

from ravi_otel._stack import files

ROOT = COLLECTOR.parent
PROGRAMS = {"collector": "otelcol-contrib", "prometheus": "prometheus", "alertmanager": "alertmanager", "jaeger": "jaeger", "loki": "loki"}
READY = {
    "collector": (13133, "/"),
    "prometheus": (9090, "/-/ready"),
    "alertmanager": (9093, "/-/ready"),
    "jaeger": (13133, "/status"),
    "loki": (3100, "/ready"),
}
ADDED = {
    "prometheus": ["--web.listen-address=0.0.0.0:9090"],
    "alertmanager": ["--web.listen-address=0.0.0.0:9093"],
    "loki": ["-server.http-listen-address=127.0.0.1", "-server.grpc-listen-address=127.0.0.1", "-ingester.min-ready-duration=0s"],
}
"""Arguments beside compose.yaml's: a container needs no address of its own, and Loki calls itself ready 15 s after it is."""

OVERLAYS = ("production",)
_STARTS = 3
NOTHING: Mapping[tuple[str | int, ...], Any] = {}


def programs(*servers: str) -> dict[str, str]:
    """Give the path of each program of these servers, or of all: servers' and tools' alike (promtool, amtool)."""
    asked = subprocess.run(
        ["sh", str(ROOT / "scripts" / "stack_servers.sh"), "paths", *servers], capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    return dict(line.split(" ", 1) for line in asked.stdout.splitlines())


class Stack(Answers):
    """Be one running stack. See Answers for what can be asked of it, and ServerProcess for what can be done to each server."""

    def __init__(
        self,
        directory: Path,
        overlays: tuple[str, ...],
        only: tuple[str, ...],
        guard: Guard,
        webhook: Webhook,
        but: Mapping[tuple[str | int, ...], Any],
        intervals: Mapping[str, str] = INTERVALS,
    ):
        self._intervals = intervals
        self.webhook = webhook
        self.overlays = overlays
        self.configs = Configs(directory, PORTS, webhook_addresses(webhook), but, intervals)
        self._compose = yaml.safe_load((COLLECTOR / "compose.yaml").read_text())["services"]
        paths = programs(*only)
        self.servers = {name: self._server(name, paths[PROGRAMS[name]], guard) for name in only}
        super().__init__(
            *(self.configs.url(name, READY[name][0]) for name in ("prometheus", "alertmanager")), self.jaeger_url, self.loki_url
        )

    @property
    def otlp_http(self) -> str:
        """Give the collector's endpoint for OTLP over HTTP, without a path."""
        return self.configs.url("collector", 4318)

    @property
    def otlp_grpc(self) -> str:
        """Give the collector's endpoint for OTLP over gRPC."""
        return self.configs.url("collector", 4317)

    @property
    def prometheus_url(self) -> str:
        return self.configs.url("prometheus", 9090)

    @property
    def alertmanager_url(self) -> str:
        return self.configs.url("alertmanager", 9093)

    @property
    def jaeger_url(self) -> str:
        return self.configs.url("jaeger", 16686)

    @property
    def loki_url(self) -> str:
        return self.configs.url("loki", 3100)

    def server(self, name: str) -> ServerProcess:
        """Give one of collector, prometheus, alertmanager, jaeger, loki: `pause`, `resume`, `kill`, `restart`, `down`, `tail`."""
        return self.servers[name]

    def environment(self, service: str = "stack-tests", protocol: str = "http/protobuf") -> dict[str, str]:
        """Give the variables with which a program sends to this stack: soon enough for a test, unless it keeps its own intervals."""
        soon = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_BLRP_SCHEDULE_DELAY": "200"}
        return (soon if self._intervals else {}) | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.otlp_grpc if protocol == "grpc" else self.otlp_http,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_SERVICE_NAME": service,
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }

    def start(self) -> None:
        """Run every server, the collector when those that it sends to are ready, and return when all are."""
        stores = [server for name, server in self.servers.items() if name != "collector"]
        for server in stores:
            server.start(wait=False)
        for server in stores:
            server.wait_until_ready()
        if "collector" in self.servers:
            self.servers["collector"].start()

    def stop(self) -> None:
        """End every server, also one that is paused."""
        failures: list[AssertionError] = []
        for server in self.servers.values():
            try:
                server.stop()
            except AssertionError as failure:
                failures.append(failure)
        self.close()
        if failures:
            raise failures[0]

    def logs_of_servers(self) -> str:
        """Give the end of what each server wrote."""
        return "\n".join(f"---- {name} ----\n{server.tail()}" for name, server in self.servers.items())

    def _server(self, name: str, program: str, guard: Guard) -> ServerProcess:
        service = self._compose[name]
        directory = self.configs.directory(name)
        directory.mkdir(parents=True, exist_ok=True)
        for volume in service.get("volumes", ()):
            source, inside, *_ = volume.split(":")
            if source.startswith("."):
                self.configs.write(name, inside, (COLLECTOR / source).resolve())
            else:
                self.configs.path(name, inside).mkdir(parents=True, exist_ok=True)
        chosen = files.settings(ROOT, environ={}) | overlay_variables(self.overlays)
        arguments = [self.configs.text(name, filled(argument, chosen)) for argument in [*service["command"], *ADDED.get(name, ())]]
        environment = {key: filled(value, chosen) for key, value in service.get("environment", {}).items()}
        port, path = READY[name]
        return ServerProcess(name, [program, *arguments], environment, directory, self.configs.url(name, port) + path, guard)


def overlay_variables(overlays: tuple[str, ...]) -> dict[str, str]:
    """Give compose.yaml's variables for at most two overlays: base laid over itself is base."""
    assert len(overlays) <= 2, f"compose.yaml lays two overlays over base, not {overlays}"
    first, second = ("base", "base", *overlays)[-2:]
    return {"RAVI_OVERLAY_1": first, "RAVI_OVERLAY_2": second}


def filled(argument: str, variables: Mapping[str, str]) -> str:
    """Put variables into a `${NAME:?}` of compose.yaml."""
    return re.sub(r"\$\{(\w+):\?\}", lambda found: variables[found[1]], argument)


def webhook_addresses(webhook: Webhook) -> dict[str, str]:
    """Give which addresses of alertmanager.yaml are the webhook's here: those of its webhook_configs."""
    configs = [yaml.safe_load(file.read_text()) for file in sorted((COLLECTOR / "alertmanager").glob("*.yaml"))]
    receivers = [receiver for config in configs for receiver in config["receivers"]]
    urls = [hook["url"] for receiver in receivers for hook in receiver.get("webhook_configs", ()) if "url" in hook]
    return {found[0]: f"http://{webhook.address}" for url in urls if (found := re.match(r"https?://[^/]+", url))}


@contextlib.contextmanager
def running_stack(
    *,
    overlays: tuple[str, ...] = OVERLAYS,
    only: tuple[str, ...] = tuple(PROGRAMS),
    but: Mapping[tuple[str | int, ...], Any] = NOTHING,
    intervals: Mapping[str, str] = INTERVALS,
) -> Iterator[Stack]:
    """Run a stack of one's own, or some of its servers; nothing of it is left afterwards, also where the run was killed.

    `but` gives what a test has to have otherwise, by the keys that lead there; without `intervals` those that are shipped are kept.
    """
    directory = Path(tempfile.mkdtemp(prefix="ravi-stack-"))
    with contextlib.ExitStack() as after:
        after.callback(shutil.rmtree, directory, ignore_errors=True)
        guard = Guard()
        after.callback(guard.close)
        webhook = Webhook()
        after.callback(webhook.close)
        stack = started(lambda attempt: Stack(directory / str(attempt), overlays, only, guard, webhook, but, intervals))
        after.callback(stack.stop)
        try:
            yield stack
        except BaseException:
            print(stack.logs_of_servers())  # shown beside the failure
            raise


def started(make: Callable[[int], Stack]) -> Stack:
    """Give a stack that runs; one whose port another program took meanwhile is made again, with other ports."""
    for attempt in range(_STARTS):
        stack = make(attempt)
        try:
            stack.start()
        except BaseException:
            taken = "address already in use" in stack.logs_of_servers()
            stack.stop()
            if attempt == _STARTS - 1 or not taken:
                raise
        else:
            return stack
    raise AssertionError("not reached")


def program_environment(stack: Stack, **more: Any) -> dict[str, str]:
    """Give the whole environment of a program: this one's without what could change what it sends, and the stack's."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "RAVI_", "OPENAI_"))}
    return known | stack.environment() | {key: str(value) for key, value in more.items()}
