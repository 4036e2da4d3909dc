"""Where the stack's files are, what becomes of them, and who says which port."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

import pytest

from ravi_otel._stack import files
from ravi_otel.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


def test_in_a_checkout_the_files_are_the_checkouts():
    assert files.shipped() == ROOT


def test_the_wheel_takes_every_file_to_where_it_is_looked_for():
    taken = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    listed = [path.as_posix() for path in files.listed(ROOT)]
    assert {"collector/.env", "collector/compose.yaml", "collector/otelcol/base.yaml", "dashboards/budgets.json"} <= set(listed)
    for name in listed:
        part = next(each for each in taken if name == each or name.startswith(f"{each}/"))
        assert taken[part] == f"ravi_otel/_stack/files/{part}"


def test_what_only_this_tree_needs_is_not_copied():
    listed = {path.as_posix() for path in files.listed(ROOT)}
    assert not [name for name in listed if "/tests/" in name or "/source/" in name or name.endswith(("builder.yaml", ".py", ".pyc"))]


def test_a_copy_is_whole_and_can_be_read_by_the_users_of_containers(tmp_path):
    to = tmp_path / "state" / "stack"
    files.copied(to)
    assert list(files.listed(to)) == list(files.listed(ROOT))
    for relative in files.listed(to):
        assert (to / relative).read_bytes() == (ROOT / relative).read_bytes()
        assert stat.S_IMODE((to / relative).stat().st_mode) == 0o644
        assert stat.S_IMODE((to / relative).parent.stat().st_mode) & 0o055 == 0o055


def test_a_second_copy_changes_what_was_changed_back_and_takes_away_what_is_no_longer_shipped(tmp_path):
    files.copied(tmp_path)
    before = files.digest(tmp_path)
    (tmp_path / "collector" / "compose.yaml").write_text("other")
    old = tmp_path / "collector" / "otelcol" / "old.yaml"
    old.write_text("of an earlier version")
    secret = tmp_path / "collector" / "alertmanager" / "secrets" / "mail"
    secret.parent.mkdir()
    secret.write_text("a password")
    assert files.digest(tmp_path) != before
    files.copied(tmp_path)
    assert not old.exists()
    assert secret.read_text() == "a password"
    secret.unlink()
    assert files.digest(tmp_path) == before == files.digest(ROOT)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_nothing_is_written_over_what_is_no_folder(tmp_path, kind):
    place = tmp_path / "collector"
    if kind == "file":
        place.write_text("mine")
    else:
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="is not a folder"):
        files.copied(tmp_path)
    assert not list((tmp_path / "elsewhere").glob("*"))


def test_a_link_where_a_file_is_written_aside_is_taken_away_and_not_written_through(tmp_path):
    victim = tmp_path / "secret"
    victim.write_text("mine")
    victim.chmod(0o600)
    to = tmp_path / "stack"
    (to / "collector").mkdir(parents=True)
    (to / "collector" / ".compose.yaml.new").symlink_to(victim)
    files.copied(to)
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("mine", 0o600)
    assert not (to / "collector" / "compose.yaml").is_symlink()


def test_a_folder_that_is_a_link_is_not_written_through(tmp_path):
    elsewhere = tmp_path / "private"
    elsewhere.mkdir(mode=0o700)
    to = tmp_path / "stack"
    (to / "collector").mkdir(parents=True)
    (to / "collector" / "prometheus").symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="is a link, and the stack's files go there"):
        files.copied(to)
    assert list(elsewhere.iterdir()) == []
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700


def test_settings_are_read_from_files_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="is no file"):
        files.settings(files.shipped(), tmp_path / "pipe", environ={})
    (tmp_path / "nul").write_bytes(b"RAVI_PORT_GRAFANA=30\x0001\n")
    with pytest.raises(ConfigurationError, match=r"Line 1 of .* is no NAME=VALUE"):
        files.settings(files.shipped(), tmp_path / "nul", environ={})
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfRAVI_PORT_GRAFANA=3001\n")
    assert files.settings(files.shipped(), tmp_path / "marked", environ={})["RAVI_PORT_GRAFANA"] == "3001"


def test_a_place_that_cannot_be_written_is_a_sentence_with_the_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigurationError, match=r"cannot be written below .*/file/stack: Not a directory\. Name another folder with --files\."
    ):
        files.copied(tmp_path / "file" / "stack")


def test_a_file_of_settings_is_stronger_than_the_shipped_one_and_the_environment_stronger_still(tmp_path):
    beside = tmp_path / "mine.env"
    beside.write_text("# mine\n\nRAVI_PORT_GRAFANA=3001\nRAVI_PORT_LOKI='3101'\nSMTP_PASSWORD=s3cret\nLOKI_TAG=\n")
    found = files.settings(ROOT, beside, {"RAVI_PORT_LOKI": "3102", "RAVI_PORT_JAEGER": "", "HOME": "x"})
    assert (found["RAVI_PORT_GRAFANA"], found["RAVI_PORT_LOKI"], found["RAVI_PORT_JAEGER"]) == ("3001", "3102", "16686")
    assert found["SMTP_PASSWORD"] == "s3cret"
    assert found["LOKI_TAG"] == files.settings(ROOT, environ={})["LOKI_TAG"]
    assert "HOME" not in found


def test_a_line_that_is_no_setting_is_named_and_not_shown(tmp_path):
    beside = tmp_path / "mine.env"
    beside.write_text("A=1\nexport PASSWORD hunter2\n")
    with pytest.raises(ConfigurationError, match=r"Line 2 of .*mine\.env is no NAME=VALUE") as raised:
        files.settings(ROOT, beside, {})
    assert "hunter2" not in str(raised.value)


def test_a_file_of_settings_that_is_no_text_is_a_sentence(tmp_path):
    beside = tmp_path / "mine.env"
    beside.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="it is not UTF-8"):
        files.settings(ROOT, beside, {})


@pytest.mark.parametrize(("state", "under"), [("", ".local/state"), ("relative", ".local/state"), ("/state", "/state")])
def test_the_usual_place_is_the_users_folder_for_state(state, under):
    assert files.usual_place({"XDG_STATE_HOME": state}) == Path.home() / under / "ravi-otel" / "stack"
