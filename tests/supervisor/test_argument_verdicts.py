"""What becomes of an argument, whoever gives it: nothing is let through that was refused, and nothing is told otherwise."""

import argument_table
import pytest


@pytest.fixture(scope="module")
def found():
    return argument_table.verdicts()


def test_every_argument_is_judged_and_given_as_the_table_says(found):
    known = argument_table.read()
    assert {row: verdict for row, verdict in found.items() if known.get(row) != verdict} == {}
    assert found.keys() == known.keys()
