"""Who hears of work in a scope, for code that fires events of its own kind."""

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, HookEvent, HookManager


def test_a_scope_lists_the_managers_of_process_run_and_agent_each_once():
    everywhere, of_run, of_agent = HookManager(), HookManager(), HookManager()
    with ravi_otel.instrument(hooks=everywhere):
        with ravi_otel.run("r", hooks=[of_run, everywhere]), ravi_otel.agent("a", hooks=[of_agent, of_run]) as agent:
            assert agent.scope.hooks == (everywhere, of_run, of_agent)
            with ravi_otel.agent("below"), ravi_otel.apply_limits([]):
                assert ravi_otel.current_scope().hooks == (everywhere, of_run)
        assert ravi_otel.current_scope().hooks == (everywhere,)


def test_an_event_that_a_program_fires_by_them_is_heard(instrumented):
    hooks, heard = HookManager(), []
    hooks.register(HookEvent.STEP_START, lambda event: heard.append(event["step"]))
    with ravi_otel.run("r", hooks=hooks):
        for manager in ravi_otel.current_scope().hooks:
            manager.emit(HookEvent.STEP_START, {"step": 1})
    assert (heard, ravi_otel.current_scope().hooks) == ([1], ())


@pytest.mark.parametrize("given", [{}, {HookEvent.STEP_START: print}, "", b""])
def test_a_mapping_is_no_list_of_managers_nor_is_text(given):
    with pytest.raises(ConfigurationError, match=r"run\(hooks\)=.* must be a HookManager, or several in a list"):
        ravi_otel.run("r", hooks=given)
