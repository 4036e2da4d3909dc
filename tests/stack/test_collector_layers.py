"""What the collector's configuration comes to, once overlays are laid over it: maps are merged, lists are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ravi_otel._stack.doctor.telemetry import SERVICE
from ravi_otel._stack.servers import OVERLAYS
from ravi_otel._telemetry import names

COLLECTOR = Path(__file__).parents[2] / "collector"
LAYERS = [(), ("production",), ("bridge",), ("production", "bridge"), ("bridge", "production")]
EXPORTERS = {"traces/out": ["otlp_grpc/jaeger"], "metrics": ["otlp_http/prometheus"], "logs": ["otlp_http/loki"]}


def merged(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {key: merged(below.get(key), above.get(key)) if key in above else below[key] for key in {**below, **above}}
    return above


def layered(*overlays: str) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name in ("base", *overlays):
        config = merged(config, yaml.safe_load((COLLECTOR / "otelcol" / f"{name}.yaml").read_text()))
    return config


every_layer = pytest.mark.parametrize("overlays", LAYERS, ids="+".join)


def test_the_overlays_of_the_command_are_the_files_that_are_there():
    assert {path.stem for path in (COLLECTOR / "otelcol").glob("*.yaml")} == {"base", *OVERLAYS}


@every_layer
def test_base_laid_over_itself_is_base(overlays):
    assert layered("base", *overlays) == layered(*overlays)


@every_layer
def test_whatever_a_pipeline_names_is_configured_and_whatever_is_configured_is_used(overlays):
    config = layered(*overlays)
    connectors = set(config["connectors"])
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for pipeline in config["service"]["pipelines"].values():
        for kind, named in used.items():
            named.update(pipeline.get(kind, ()))
    assert used["receivers"] == set(config["receivers"]) | connectors
    assert used["exporters"] == set(config["exporters"]) | connectors
    assert used["processors"] == set(config["processors"])
    assert set(config["service"]["extensions"]) == set(config["extensions"])


@every_layer
def test_whatever_comes_in_meets_the_memory_limiter_first(overlays):
    for name, pipeline in layered(*overlays)["service"]["pipelines"].items():
        if "otlp" in pipeline["receivers"]:
            assert pipeline["processors"][0] == "memory_limiter", name


@every_layer
def test_spans_are_counted_before_any_is_sampled(overlays):
    pipelines = layered(*overlays)["service"]["pipelines"]
    assert pipelines["traces/in"]["exporters"] == ["span_metrics", "forward"]
    assert "tail_sampling" not in pipelines["traces/in"]["processors"]
    assert pipelines["traces/out"]["receivers"] == ["forward"]
    assert pipelines["traces/out"].get("processors", []) == (["tail_sampling"] if "production" in overlays else [])
    assert "span_metrics" in pipelines["metrics"]["receivers"]


@every_layer
def test_every_signal_goes_to_its_store_through_a_queue_on_disk_that_is_never_given_up(overlays):
    config = layered(*overlays)
    for name, exporters in EXPORTERS.items():
        assert config["service"]["pipelines"][name]["exporters"] == exporters
    for name, exporter in config["exporters"].items():
        queue = exporter["sending_queue"]
        assert queue["storage"] in config["extensions"], name
        assert queue["queue_size"] < config["extensions"]["file_storage/queue"]["max_size"]
        assert queue["batch"]["max_size"] > queue["batch"]["min_size"]
        assert exporter["retry_on_failure"]["max_elapsed_time"] == "0s"


@every_layer
def test_no_component_has_a_name_that_the_collector_has_given_up(overlays):
    old = {"otlphttp", "otlp", "spanmetrics", "prometheusremotewrite", "signaltometrics", "resourcedetection", "healthcheck"}
    config = layered(*overlays)
    kinds = {name.partition("/")[0] for part in ("exporters", "connectors", "processors", "extensions") for name in config[part]}
    assert not kinds & old


def test_jaeger_takes_the_collectors_largest_batch():
    jaeger = yaml.safe_load((COLLECTOR / "jaeger" / "jaeger.yaml").read_text())
    largest = layered()["exporters"]["otlp_grpc/jaeger"]["sending_queue"]["batch"]["max_size"]
    assert jaeger["receivers"]["otlp"]["protocols"]["grpc"]["max_recv_msg_size_mib"] * 2**20 > 2 * largest


def test_errors_limits_and_slow_traces_are_kept_whatever_becomes_of_the_rest():
    sampling = layered("production")["processors"]["tail_sampling"]
    policies = {policy["name"]: policy for policy in sampling["policies"]}
    assert list(policies) == ["errors", "limits", "ends", "slow", "doctor", "rest"]
    assert policies["errors"]["status_code"]["status_codes"] == ["ERROR"]
    assert f'span.attributes["{names.LIMIT_DECISION}"] == "denied"' in policies["limits"]["ottl_condition"]["span"]
    assert policies["ends"]["ottl_condition"]["span"] == [f'span.attributes["{names.STOP_REASON}"] != nil']
    assert policies["slow"]["latency"]["threshold_ms"] == 60_000
    assert policies["doctor"]["string_attribute"] == {"key": "service.name", "values": [SERVICE]}
    assert sampling["sampling_strategy"] == "span-ingest", "a trace with a limit event must be seen while its run goes on"
    cache = sampling["decision_cache"]
    assert min(cache["sampled_cache_size"], cache["non_sampled_cache_size"]) >= 10 * sampling["num_traces"]


def test_the_names_that_the_bridge_writes_are_names_of_ours():
    known = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    written = set()
    for group in layered("bridge")["processors"]["transform/bridge"]["trace_statements"]:
        for statement in group["statements"]:
            if statement.startswith('set(attributes["'):
                written.add(statement.split('"')[1])
    assert written
    assert written <= known


def test_the_single_container_names_events_and_metrics_as_the_stack_does():
    named = yaml.safe_load((COLLECTOR / "one" / "collector.yaml").read_text())["processors"]
    assert named == {"transform/event_name": layered()["processors"]["transform/event_name"]}
    usual, one = (yaml.safe_load((COLLECTOR / path / "prometheus.yaml").read_text()) for path in ("prometheus", "one"))
    for part in ("otlp", "storage", "global"):
        assert one[part] == usual[part]


def test_data_sources_have_the_uids_that_dashboards_name_and_lead_to_each_other():
    sources = yaml.safe_load((COLLECTOR / "grafana/provisioning/datasources/datasources.yaml").read_text())["datasources"]
    one = yaml.safe_load((COLLECTOR / "one" / "datasources.yaml").read_text())["datasources"]
    by_uid = {source["uid"]: source["jsonData"] for source in sources}
    assert set(by_uid) == {"ravi-prometheus", "ravi-jaeger", "ravi-loki", "ravi-alertmanager"}
    assert {source["uid"]: source["jsonData"] for source in one} == {uid: by_uid[uid] for uid in by_uid if uid != "ravi-alertmanager"}
    assert [each["datasourceUid"] for each in by_uid["ravi-prometheus"]["exemplarTraceIdDestinations"]] == ["ravi-jaeger"]
    assert by_uid["ravi-jaeger"]["tracesToLogsV2"]["datasourceUid"] == "ravi-loki"
    assert by_uid["ravi-jaeger"]["tracesToMetrics"]["datasourceUid"] == "ravi-prometheus"
    assert [each["datasourceUid"] for each in by_uid["ravi-loki"]["derivedFields"]] == ["ravi-jaeger"]
