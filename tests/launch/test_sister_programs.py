"""A program that never imports openai is held to its limits all the same."""

import pytest


@pytest.mark.parametrize(("client", "model"), [("anthropic", "claude-opus-4-8"), ("groq", "llama-3.3-70b")])
def test_a_program_over_a_sister_client_sends_what_it_may_and_is_refused(desk, client, model):
    done = desk.launch(*desk.program("sisters", client, desk.server.url), flags=["--limit", "requests=3"])
    assert (desk.sent, done.status) == (3, 4), done.err
    assert done.out.splitlines() == ["hello there"] * 3
    assert model in done.report
