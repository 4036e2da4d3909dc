"""A module whose import began before anybody watched for it: it is wrapped at the next import after it is whole."""

import importlib
import sys

import pytest

from ravi_otel._runtime.patching import IMPORTS, Package, Wraps


class Going:
    """Wrap `Thing.go` of a module."""

    def __init__(self, module):
        self._module = module
        self._wraps = Wraps()

    def install(self):
        self._wraps.wrap(self._module.Thing, "go", lambda wrapped, _instance, args, kwargs: f"wrapped {wrapped(*args, **kwargs)}")

    def remove(self):
        self._wraps.restore()


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    made = Package("half_made", Going, "unusable: %s")
    (tmp_path / "half_made.py").write_text("import half_begins\n\n\nclass Thing:\n    def go(self):\n        return 'there'\n")
    (tmp_path / "half_begins.py").write_text("import builtins\n\nbuiltins.half_begins()\n")
    (tmp_path / "half_next.py").write_text("")
    monkeypatch.setattr("builtins.half_begins", made.install, raising=False)
    yield made
    made.remove()
    for name in ("half_made", "half_begins", "half_next"):
        sys.modules.pop(name, None)


def test_it_is_wrapped_once_it_is_whole(package, caplog):
    half = importlib.import_module("half_made")
    assert half.Thing().go() == "there"
    importlib.import_module("half_next")
    assert half.Thing().go() == "wrapped there"
    assert not caplog.records


def test_what_is_removed_before_that_stays_as_it_is(package):
    half = importlib.import_module("half_made")
    package.remove()
    importlib.import_module("half_next")
    assert half.Thing().go() == "there"
    assert IMPORTS not in sys.meta_path or not IMPORTS._begun
