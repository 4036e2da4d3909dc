"""What names a tool that there is not is refused where it is given: it would hold for nothing."""

import asyncio
import contextlib
import logging

import pytest
from refund_gate import APPROVE, Says

import ravi_otel
from ravi_otel.agents import ReActAgent
from ravi_otel.errors import ConfigurationError, StopRun
from ravi_otel.supervisor import AuditLog, Budget, Gate, Rules, ToolGateway
from ravi_otel.supervisor.rules import BlockTools, Cap, EscalateAbove

MISSPELT = Rules([EscalateAbove("pey", "usd", 10)])


def pay(usd: int) -> str:
    return f"paid {usd}"


PLACES = {
    "gate": lambda **more: Gate(tools=[pay], **more),
    "gateway": lambda **more: ToolGateway({"pay": pay}, **more),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("names", [{"allow": ["pey"]}, {"read_only": ["pey"]}, {"per_tool_limit": {"pey": 1}}, {"supervisor": MISSPELT}])
def test_a_name_that_no_tool_has_is_refused_with_the_nearest(place, names):
    with pytest.raises(ConfigurationError, match="'pey', which there is not, did you mean 'pay'"):
        PLACES[place](**names)


def test_an_agent_refuses_rules_about_a_tool_that_it_does_not_have():
    with pytest.raises(ConfigurationError, match="did you mean 'pay'"):
        ReActAgent("clerk", tools=[pay], supervisor=MISSPELT)


def test_a_rule_about_an_argument_that_its_tool_lacks_is_refused():
    with pytest.raises(ConfigurationError, match="did you mean 'usd'"):
        Gate(Rules([Cap("pay", "usdd", 10)], shared=True), tools=[pay])


@pytest.mark.parametrize("way", ["shared", "instrument_tools"])
def test_rules_for_several_gates_are_said_once_where_a_gate_lacks_the_tool(way, caplog):
    rules = Rules([EscalateAbove("mail", "usd", 10), BlockTools("mail")], shared=way == "shared")
    for _ in range(2):
        if way == "shared":
            Gate(rules, tools=[pay])
        else:
            ravi_otel.instrument_tools({"pay": pay}, supervisor=rules).remove()
    assert [each.getMessage().count("'mail'") for each in caplog.records] == [1]


def test_a_limit_on_a_misspelt_tool_of_an_agent_is_said(caplog):
    ReActAgent("clerk", tools=[pay], limits=["tool.pey=1", "tool.something_else=1"])
    assert [each.getMessage() for each in caplog.records] == [
        "ravi-otel: agent clerk has a limit on tool.pey, and no such tool: did you mean tool.pay?"
    ]


def test_a_limit_on_a_tool_of_an_agent_without_tools_is_said(caplog):
    ReActAgent("clerk", limits=["tool.pay=1", "tokens=1000"])
    assert [each.getMessage() for each in caplog.records] == [
        "ravi-otel: agent clerk has a limit on tool.pay, and no tools of its own: did you forget tools=[...]?"
    ]


def test_a_tool_that_is_not_there_is_missing_and_the_nearest_is_named():
    with ravi_otel.run("desk"), ToolGateway({"pay": pay}) as gateway, pytest.raises(StopRun, match="did you mean 'pay'") as stop:
        gateway.call("pey", {"usd": 1})
    assert stop.value.reason == "tool_missing:pey"


# -- what cannot be used is said where it is given ----------------------------------------------------------------------


class AsyncState:
    async def begin(self, tool, arguments):
        raise AssertionError

    async def end(self, tool, arguments, status, result):
        raise AssertionError


class AsyncAudit:
    async def note(self, what, **facts):
        raise AssertionError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"supervisor": Rules}, r"is a class; give an instance, Rules\(\.\.\.\)"),
        ({"supervisor": "rules"}, "no review"),
        ({"audit": "audit"}, "no note"),
        ({"audit": AuditLog}, "give an instance"),
        ({"approver": object()}, "no ask"),
        ({"state": AsyncState()}, r"async begin\(\), which nobody awaits"),
        ({"audit": AsyncAudit()}, r"async note\(\), which nobody awaits"),
    ],
)
def test_what_a_gate_cannot_use_is_refused_when_it_is_made(given, words):
    with pytest.raises(ConfigurationError, match=words):
        Gate(tools=[pay], **given)


@pytest.mark.parametrize("budget", [5, ravi_otel.ExecutionBudget(max_tokens=5)])
def test_another_budget_than_the_gateways_is_refused(budget):
    with pytest.raises(ConfigurationError, match=r"write budget=Budget\(max_tool_calls=5\)"):
        ToolGateway({"pay": pay}, budget=budget)


def test_rules_are_read_from_a_path_and_from_nothing_else():
    with pytest.raises(ConfigurationError, match="takes the path of a policy file"):
        Rules.from_file({"gate": {}})


class LateState:
    """Give something to await where it cannot be seen beforehand."""

    def begin(self, tool, arguments):
        return asyncio.sleep(0)

    def end(self, tool, arguments, status, result):
        return None


def test_a_state_that_gives_something_to_await_lets_nothing_through():
    with ravi_otel.run("desk"), pytest.raises(ConfigurationError, match=r"state.begin\(\) gave something to await"):
        ravi_otel.tool(pay, gate=Gate(tools=[pay], state=LateState()))(1)


def test_what_cannot_be_written_down_says_the_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    gate = Gate(tools=[pay], audit=AuditLog(tmp_path / "file"))
    with ravi_otel.run("desk"), pytest.raises(StopRun, match="give AuditLog a directory you can write"):
        ravi_otel.tool(pay, gate=gate)(1)


def test_a_tool_that_no_call_can_fit_is_said_when_its_gate_is_made(caplog):
    class Order:
        pass

    def ship(order: Order) -> str:
        return "shipped"

    with ravi_otel.instrument_tools({"ship": ship, "pay": pay}, supervisor=Says(APPROVE)):
        pass
    assert ["no call of ship can pass its gate" in each.getMessage() for each in caplog.records] == [True]


# -- a budget is one for the whole run -------------------------------------------------------------------------------


def test_a_gateway_that_was_closed_gives_a_run_no_other_budget():
    gateway = ToolGateway({"pay": pay}, budget=Budget(max_tool_calls=1))
    with ravi_otel.run("desk"):
        with gateway:
            gateway.call("pay", {"usd": 1})
        with pytest.raises(ConfigurationError, match="was closed in this run"):
            gateway.call("pay", {"usd": 2})
    with ravi_otel.run("another"), gateway:
        assert gateway.call("pay", {"usd": 2}) == "paid 2"


# -- who failed, and what is told of it ---------------------------------------------------------------------------------


class SlackDownError(Exception):
    pass


class Down:
    def ask(self, request):
        raise SlackDownError("token=hunter2")

    def executed(self, request, status):
        raise AssertionError


def test_an_approver_that_fails_is_the_cause_of_a_refusal_and_its_text_is_not_logged(caplog):
    gate = Gate(Rules([EscalateAbove("pay", "usd", 10)]), tools=[pay], approver=Down())
    with ravi_otel.run("desk"), pytest.raises(ravi_otel.ToolDeniedError, match=r"the approver .* failed with SlackDownError") as denied:
        ravi_otel.tool(pay, gate=gate)(100)
    assert denied.value.stop_reason == "supervisor_block:not_decided"
    assert isinstance(denied.value.__cause__, SlackDownError)
    assert "the approver failed" in caplog.text
    assert "test_gate_names.py" in caplog.text
    assert "hunter2" not in caplog.text


class Broken:
    def review(self, action, state, policy):
        return {}[action["args"]["password"]]


class BadState:
    def begin(self, tool, arguments):
        pass

    def end(self, tool, arguments, status, result):
        raise ValueError(f"cannot store {arguments}")


@pytest.mark.parametrize("more", [{"supervisor": Broken()}, {"state": BadState()}])
def test_what_a_supervisor_or_a_state_raises_is_logged_without_its_text(more, caplog):
    def login(password: str) -> str:
        return "in"

    gated = ravi_otel.tool(login, gate=Gate(tools=[login], **more))
    with ravi_otel.run("desk"), contextlib.suppress(ravi_otel.ToolDeniedError):
        gated("hunter2")
    assert [each.levelno for each in caplog.records] == [logging.ERROR]
    assert "hunter2" not in caplog.text


class NoMail:
    def review(self, action, state, policy):
        return ravi_otel.supervisor.Decision("block", "no_mail")


def mail(to: str) -> str:
    return "sent"


def refund(usd: int) -> str:
    gated_mail("a@b")
    return "paid"


gated_mail = ravi_otel.tool(mail, gate=Gate(NoMail(), tools=[mail]))


def test_a_tool_that_ran_and_met_another_ones_refusal_is_an_error_of_its_own():
    with ravi_otel.run("desk"), ToolGateway({"refund": refund}) as gateway, pytest.raises(StopRun) as stop:
        gateway.call("refund", {"usd": 900})
    assert (stop.value.reason, stop.value.phase) == ("tool_error:refund", "execution")
    assert stop.value.__cause__.tool == "mail"


def test_the_refusal_of_another_tool_is_not_the_result_of_the_one_that_ran():
    tools = {"refund": refund}
    placed = ravi_otel.instrument_tools(tools, supervisor=Says(APPROVE), refused="result")
    with ravi_otel.run("desk"), placed, pytest.raises(ravi_otel.ToolDeniedError) as denied:
        tools["refund"](900)
    assert denied.value.tool == "mail"


# -- what an approval is bound to ------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("currency",)

    def __init__(self):
        self.currency = "USD"


class Plain:
    def __init__(self):
        self.currency = "USD"


class Nested:
    def __init__(self):
        self.inner = [Slotted()]

    @property
    def currency(self):
        return self.inner[0].currency

    @currency.setter
    def currency(self, value):
        self.inner[0].currency = value


@pytest.mark.parametrize("kind", [Slotted, Plain, Nested])
def test_a_policy_of_any_class_that_changes_after_the_yes_is_asked_about_again(kind):
    policy, asked = kind(), []

    def person(request):
        asked.append(policy.currency)
        policy.currency = "BTC"
        return True

    gate = Gate(
        Rules([EscalateAbove("pay", "usd", 10)]), tools=[pay], policy=policy, approver=ravi_otel.supervisor.CallbackApprover(person)
    )
    with ravi_otel.run("desk"):
        ravi_otel.tool(pay, gate=gate)(100)
    assert asked == ["USD", "BTC"]


@pytest.mark.parametrize("version", ["1", 1, ("a", 1)])
def test_a_version_of_any_type_is_what_an_approval_is_bound_to(version):
    class Versioned:
        def __init__(self):
            self.version = version

        def review(self, action, state, policy):
            return ravi_otel.supervisor.Decision("escalate", "ask")

    supervisor, asked = Versioned(), []

    def person(request):
        asked.append(supervisor.version)
        supervisor.version = type(version)("2")
        return True

    gate = Gate(supervisor, tools=[pay], approver=ravi_otel.supervisor.CallbackApprover(person))
    with ravi_otel.run("desk"):
        ravi_otel.tool(pay, gate=gate)(1)
    assert len(asked) == 2
