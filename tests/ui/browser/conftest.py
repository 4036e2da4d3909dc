"""A browser before the served page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from page_stage import Looking, Served
from playwright.sync_api import Browser, sync_playwright

NO_NETWORK = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("there is no Chromium: `make ui-test` installs it where it may")
    with sync_playwright() as playwright:
        known = playwright.chromium.launch(executable_path=program, args=list(NO_NETWORK))
        yield known
        known.close()


@pytest.fixture
def looking(browser: Browser, served: Served, request: pytest.FixtureRequest) -> Iterator[Looking]:
    known = Looking(browser, served, **getattr(request, "param", {}))
    yield known
    found = known.accessible() if known.page.url.startswith(f"{served.origin}/") else []  # wherever the story ended
    known.context.close()
    assert known.complaints() == []
    assert found == []
