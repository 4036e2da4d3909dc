"""Rules and routes as the programs that read them see them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from stack_configs import COLLECTOR
from stack_servers import programs

RULES = sorted((COLLECTOR / "prometheus" / "rules").glob("*.yaml"))
CASES = sorted((COLLECTOR / "prometheus" / "tests").glob("*.yaml"))
ROUTES = COLLECTOR / "alertmanager" / "alertmanager.yaml"


def run(tool: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    server = {"promtool": "prometheus", "amtool": "alertmanager"}[tool]
    return subprocess.run([programs(server)[tool], *map(str, arguments)], capture_output=True, text=True, check=False, timeout=200)


def test_prometheus_takes_every_rule_without_a_word():
    done = run("promtool", "check", "rules", "--lint=all", "--lint-fatal", *RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(RULES)


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_the_rules_tell_what_their_cases_say(file: Path):
    done = run("promtool", "test", "rules", file)
    assert (done.returncode, done.stdout.strip().splitlines()[-1].strip()) == (0, "SUCCESS"), done.stdout + done.stderr


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_the_cases_would_see_another_threshold(file: Path, tmp_path: Path):
    (tmp_path / "rules").mkdir()
    (tmp_path / "tests").mkdir()
    for rule in RULES:
        (tmp_path / "rules" / rule.name).write_text(rule.read_text())
    thresholds = (tmp_path / "rules" / "thresholds.yaml").read_text()
    (tmp_path / "rules" / "thresholds.yaml").write_text(re.sub(r"vector\(.+\)", "vector(1e9)", thresholds))
    (tmp_path / "tests" / file.name).write_text(file.read_text())
    assert run("promtool", "test", "rules", tmp_path / "tests" / file.name).returncode == 1


def test_prometheus_takes_its_configuration(tmp_path: Path):
    shipped = (COLLECTOR / "prometheus" / "prometheus.yaml").read_text()
    config = tmp_path / "prometheus.yaml"
    config.write_text(shipped.replace("/etc/prometheus/rules", str(COLLECTOR / "prometheus" / "rules")))
    done = run("promtool", "check", "config", "--lint=all", config)
    assert done.returncode == 0, done.stdout + done.stderr


def uncommented(text: str) -> str:
    """Give the file with its placeholders for mail and chat in use."""
    return re.sub(r"^( *)# (?=smtp_|- name|- receiver|  )", r"\1", text, flags=re.MULTILINE)


@pytest.mark.parametrize("change", [str, uncommented], ids=["as shipped", "with mail and chat"])
def test_alertmanager_takes_its_configuration(change, tmp_path: Path):
    file = tmp_path / "alertmanager.yaml"
    file.write_text(change(ROUTES.read_text()))
    done = run("amtool", "check-config", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{1 if change is str else 3} receivers" in done.stdout


@pytest.mark.parametrize(("severity", "receivers"), [("critical", {"webhook", "mail", "chat"}), ("warning", {"webhook", "chat"})])
def test_with_mail_and_chat_each_is_told_what_is_for_it(severity, receivers, tmp_path: Path):
    file = tmp_path / "alertmanager.yaml"
    file.write_text(uncommented(ROUTES.read_text()))
    done = run("amtool", "config", "routes", "test", f"--config.file={file}", f"severity={severity}", "alertname=RaviBudgetExhausted")
    assert set(done.stdout.strip().split(",")) == receivers, done.stdout + done.stderr
