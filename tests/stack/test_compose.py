"""What the compose files promise: loopback alone, bounded memory, no loose version, no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ravi_otel._stack import files, servers
from ravi_otel._stack.servers import ONE_PROJECT, PROFILES, PROJECT

COLLECTOR = Path(__file__).parents[2] / "collector"
VARIABLES = files.settings(COLLECTOR.parent, environ={})
REFERENCE = re.compile(r"\$\{(\w+)(:[?-][^}]*)?\}")
OPTIONAL = {"RAVI_FILES_DIGEST"}
IMAGES_WITH_NOTHING_TO_ASK_WITH = {"volumes", "collector", "jaeger"}
WRITES_WHERE_IT_LIKES = {"lgtm"}


def compose(name: str) -> dict[str, Any]:
    return yaml.safe_load((COLLECTOR / name).read_text())


SERVICES = [(name, each, service) for name in ("compose.yaml", "one.yaml") for each, service in compose(name)["services"].items()]


def services(test: Any) -> Any:
    return pytest.mark.parametrize(("file", "name", "service"), SERVICES, ids=lambda value: value if isinstance(value, str) else "")(test)


@services
def test_every_port_is_published_on_loopback_alone_and_comes_from_the_environment_file(file, name, service):
    for port in service.get("ports", ()):
        found = re.fullmatch(r"127\.0\.0\.1:\$\{(RAVI_PORT_\w+):\?\}:\d+", port)
        assert found, port
        assert VARIABLES[found[1]].isdigit()


@services
def test_every_image_names_its_registry_and_a_version_of_the_environment_file(file, name, service):
    found = re.fullmatch(r"docker\.io/[\w-]+/[\w.-]+:\$\{(\w+_TAG):\?\}", service["image"])
    assert found, service["image"]
    assert re.search(r"\d+\.\d+", VARIABLES[found[1]]), VARIABLES[found[1]]


@services
def test_every_container_has_an_end_to_its_memory_and_gains_no_privileges(file, name, service):
    assert service["mem_limit"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert service.get("network_mode") in (None, "none")
    if name not in WRITES_WHERE_IT_LIKES:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


@services
def test_every_file_that_is_mounted_is_shipped_and_cannot_be_written(file, name, service):
    shipped = {path.as_posix() for path in files.listed(files.shipped())}
    volumes = set(compose(file)["volumes"])
    mounts = service.get("volumes", ())
    assert len({mount.split(":")[1] for mount in mounts}) == len(mounts)
    for mount in mounts:
        source, inside, *mode = mount.split(":")
        assert inside.startswith("/")
        if not source.startswith("."):
            assert source in volumes
            continue
        path = (COLLECTOR / source).resolve().relative_to(COLLECTOR.parent).as_posix()
        assert mode == ["ro"], mount
        assert path in shipped or any(each.startswith(f"{path}/") for each in shipped), f"{path} is not shipped"


@services
def test_every_container_is_asked_for_its_health_where_its_image_has_something_to_ask_with(file, name, service):
    assert ("healthcheck" in service) is (name not in IMAGES_WITH_NOTHING_TO_ASK_WITH)


@services
def test_a_container_waits_for_what_it_names_by_a_condition_that_can_come_true(file, name, service):
    others = compose(file)["services"]
    for other, how in service.get("depends_on", {}).items():
        assert how["condition"] != "service_healthy" or "healthcheck" in others[other]
        assert how["condition"] != "service_completed_successfully" or others[other]["restart"] == "no"


@pytest.mark.parametrize("file", ["compose.yaml", "one.yaml"])
def test_every_variable_must_be_set_and_is_in_the_environment_file(file):
    found = REFERENCE.findall((COLLECTOR / file).read_text())
    assert found
    assert {name for name, how in found if not how.startswith(":?")} == OPTIONAL
    assert {name for name, _ in found} - OPTIONAL <= set(VARIABLES)


def test_every_variable_of_the_environment_file_is_used():
    used = {name for file in ("compose.yaml", "one.yaml") for name, _ in REFERENCE.findall((COLLECTOR / file).read_text())}
    assert set(VARIABLES) == used - OPTIONAL


def test_no_two_ports_are_the_same():
    ports = [value for name, value in VARIABLES.items() if name.startswith("RAVI_PORT_")]
    assert len(ports) == len(set(ports))


def test_the_command_knows_the_projects_the_profiles_and_every_port():
    usual, one = compose("compose.yaml"), compose("one.yaml")
    assert (usual["name"], one["name"]) == (PROJECT, ONE_PROJECT)
    assert {profile for service in usual["services"].values() for profile in service.get("profiles", ())} == set(PROFILES)
    for each, asked in ((usual, servers.needed_ports(PROFILES, one=False)), (one, servers.needed_ports((), one=True))):
        published = [REFERENCE.findall(port)[0][0] for service in each["services"].values() for port in service.get("ports", ())]
        assert sorted(published) == sorted(asked)


def test_each_server_of_the_compose_file_is_asked_by_status_on_a_port_that_it_publishes():
    published = {
        name: {REFERENCE.findall(port)[0][0] for port in service["ports"]}
        for name, service in compose("compose.yaml")["services"].items()
        if "ports" in service
    }
    asked = {server.name: server for server in servers.chosen(PROFILES, one=False)}
    assert set(asked) == set(published)
    for name, server in asked.items():
        assert {server.asks, server.shows} <= published[name]


def test_the_collector_is_given_base_and_two_overlays_that_may_be_base():
    flags = compose("compose.yaml")["services"]["collector"]["command"]
    assert flags == [f"--config=/etc/otelcol/{name}.yaml" for name in ("base", "${RAVI_OVERLAY_1:?}", "${RAVI_OVERLAY_2:?}")]
    assert (VARIABLES["RAVI_OVERLAY_1"], VARIABLES["RAVI_OVERLAY_2"]) == ("base", "base")


def test_grafana_has_no_password_that_everybody_knows():
    told = compose("compose.yaml")["services"]["grafana"]["environment"]
    assert told["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert told["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert not [name for name in told if "PASSWORD" in name]


def test_redis_forgets_no_budget():
    command = compose("compose.yaml")["services"]["redis"]["command"]
    flags = dict(zip(command[1::2], command[2::2], strict=True))
    assert (flags["--maxmemory-policy"], flags["--appendonly"]) == ("noeviction", "yes")


class OnceEach(yaml.SafeLoader):
    """Refuse a key that is written twice, of which YAML's loader would take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys}, {node.start_mark}"
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("path", [path.as_posix() for path in files.listed(files.shipped()) if path.suffix == ".yaml"])
def test_no_key_of_a_shipped_file_is_written_twice(path):
    assert yaml.load((COLLECTOR.parent / path).read_text(), OnceEach)
