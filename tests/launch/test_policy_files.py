"""A launched program is held to a policy file, with the profile, mode and shares that are asked for."""

from launched import launch_in, stored

POLICY = """
limits = ["requests=4"]
[profiles.ci]
limits = ["requests=2"]
"""


def test_a_file_and_a_profile_named_by_variables_hold_the_program_and_are_named_in_the_refusal(desk):
    (desk.directory / "policy.toml").write_text(POLICY)
    done = desk.launch(*desk.program("calls", "5"), RAVI_POLICY="policy.toml", RAVI_PROFILE="ci")
    assert (done.status, desk.sent) == (4, 2), done.err
    assert "Raise requests=2 in policy.toml profiles.ci.limits[0] (profile ci) or leave it out." in done.err


def test_flags_go_before_variables_and_a_share_of_the_process_reaches_the_program(desk):
    (desk.directory / "policy.toml").write_text(POLICY)
    flags = ["--policy", "policy.toml", "--profile", "ci", "--observe", "--admission", "after"]
    done = desk.launch(*desk.program("calls", "3"), flags=flags, RAVI_PROFILE="nobody", RAVI_ENFORCEMENT="enforce", RAVI_WARN_AT="0.5")
    assert (done.status, desk.sent) == (0, 3), done.err
    assert launch_in(desk.store)["observe"] is True
    assert stored(desk.store, "SELECT event FROM events") == [("limit_nearing",), ("limit_exceeded",)]
