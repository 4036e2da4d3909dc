"""What docs/scaling.md says of slices is so."""

import re
from pathlib import Path

import pytest

from ravi_otel._enforcement.ledger.choosing import read_choice
from ravi_otel._enforcement.ledger.slices import slice as slices

PAGE = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8")
WORDS = {4: "four", 8: "eight", 10: "a tenth", 2: "half"}
TEXT = " ".join(PAGE.split())


@pytest.mark.parametrize(
    "said",
    [
        f"asks for {WORDS[slices.HOT_ASKS]} times within {WORDS[int(slices.HOT_WITHIN_S)]} seconds",
        f"in {WORDS[round(1 / slices.CHUNK_S)]} of a second, and at least {2 * slices.LEAST_CALLS} calls' worth",
        f"are at most {WORDS[slices.HELD_PARTS]} of what is left",
        "one chunk is at most a quarter of that" if slices.ROOM_PARTS == 4 else "-",
        f"A chunk for fewer than {WORDS[slices.LEAST_CALLS]} calls is not taken",
        f"no new chunk was needed for {WORDS[int(slices.KEEP_S)]} seconds",
    ],
)
def test_the_page_says_how_slices_are_sized(said):
    assert said in TEXT


def test_every_url_on_the_page_takes_slices():
    urls = re.findall(r"(?:redis://|sqlite:)[^\s'\"`…]+\?slices=on", PAGE)
    assert urls
    assert all(read_choice("ledger", url).slices for url in urls)
