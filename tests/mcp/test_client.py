"""A tool that a server runs is a tool call: counted, limited, judged and told as one that runs here, once."""

import asyncio
import pickle
from importlib.metadata import version

import pytest
from mcp import ClientSession

import ravi_otel
from ravi_otel.errors import BudgetExhaustedError, ToolDeniedError

try:
    from mcp.shared.exceptions import MCPError
except ImportError:
    from mcp.shared.exceptions import McpError as MCPError

pytestmark = pytest.mark.anyio
MAJOR = int(version("mcp").split(".")[0])


async def test_three_of_eight_run_one_after_the_other(servers, instrumented, said):
    refused = []
    async with servers.connect() as session:
        with ravi_otel.run("desk", limits=["tool_calls=3"]) as run:
            for number in range(8):
                try:
                    assert said(await session.call_tool("search", {"query": f"q{number}"})) == f"3 notes on q{number}"
                except MCPError as error:
                    refused.append(error)
        assert run.limits[0].used == 3
    assert servers.log == ["search q0 3", "search q1 3", "search q2 3"]
    assert len(refused) == 5


async def test_three_of_eight_run_at_once(servers, instrumented):
    async with servers.connect() as session:
        with ravi_otel.run("desk", limits=["tool_calls=3"]) as run:
            calls = [session.call_tool("search", {"query": f"q{number}"}) for number in range(8)]
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert run.limits[0].used == 3
    assert sum(isinstance(each, BudgetExhaustedError) for each in results) == 5
    assert len(servers.log) == 3


async def test_a_refusal_is_an_error_of_both_with_our_sentence(servers, instrumented):
    async with servers.connect() as session:
        with ravi_otel.run("desk", limits=["tool_calls=0"]), pytest.raises(BudgetExhaustedError) as caught:
            await session.call_tool("search", {"query": "q"})
    error = caught.value
    assert isinstance(error, MCPError)
    assert error.error.message == str(error)
    assert str(error).startswith("0 of 0 tool calls used in run 'desk'")
    assert error.limit_kind == "tool_calls"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is BudgetExhaustedError
    assert str(again) == str(error)


async def test_a_limit_of_one_tool_holds_for_that_tool(servers, instrumented):
    async with servers.connect() as session:
        with ravi_otel.run("desk", limits=["tool.search=1"]):
            await session.call_tool("search", {"query": "q"})
            await session.call_tool("meta", {})
            with pytest.raises(BudgetExhaustedError):
                await session.call_tool("search", {"query": "q"})


async def test_a_tool_around_it_under_its_name_is_the_same_call_once(servers, instrumented):
    async with servers.connect() as session:

        @ravi_otel.tool
        async def notes_search(query):
            first = await session.call_tool("search", {"query": query})
            await session.call_tool("search", {"query": f"{query} again"})
            return first

        with ravi_otel.run("desk", limits=["tool_calls=2"]) as run:
            await notes_search("q")
        assert run.limits[0].used == 2
        assert run.scope.spend().tool_calls == 2


@pytest.mark.skipif(MAJOR < 2, reason="before 2.0 nothing is sent again")
@pytest.mark.parametrize("transport", ["http"])
async def test_a_call_that_the_sdk_sends_once_more_by_new_headers_is_one_call(servers, instrumented, said):
    from mcp.client import Client

    with servers.serving() as url:
        async with Client(url) as client:
            with ravi_otel.run("desk", limits=["tool_calls=2"]) as run:
                assert said(await client.call_tool("mark", {"name": "a"})) == "a"  # rejected first: its schema is not known
                assert run.limits[0].used == 1
                assert said(await client.call_tool("mark", {"name": "a"})) == "a"
                with pytest.raises(BudgetExhaustedError):
                    await client.call_tool("mark", {"name": "a"})
    assert servers.log == ["mark a", "mark a"]


async def test_what_the_program_lists_and_reads_is_no_tool_call(servers, instrumented):
    async with servers.connect() as session:
        with ravi_otel.run("desk", limits=["tool_calls=0"]) as run:
            assert "search" in {tool.name for tool in (await session.list_tools()).tools}
            await session.send_ping()
        assert run.limits[0].used == 0


async def test_a_result_that_is_an_error_is_the_programs(servers, instrumented, said):
    async with servers.connect() as session:
        with ravi_otel.run("desk") as run:
            result = await session.call_tool("fail", {"why": "no such note"})
    assert "Error executing tool fail" in said(result)
    assert run.scope.spend().tool_calls == 1


class Cap:
    """Let little be asked for, and nothing of salaries."""

    read_only = ()

    def review(self, action, state, policy):
        from ravi_otel.supervisor import Decision

        if "salaries" in action["args"]["query"]:
            return Decision("block", "salaries are nobody's business")
        if action["args"]["limit"] > 3:
            return Decision("revise", "at most 3", {**action, "args": {**action["args"], "limit": 3}})
        return Decision("approve", "fine")


async def test_a_supervisor_judges_the_arguments_and_may_change_them(servers, instrumented, said):
    async with servers.connect() as session:
        await session.list_tools()
        with ravi_otel.instrument_tools("mcp:notes", supervisor=Cap()) as gated, ravi_otel.run("desk") as run:
            assert said(await session.call_tool("search", {"query": "q", "limit": 9})) == "3 notes on q"
            with pytest.raises(ToolDeniedError) as caught:
                await session.call_tool("search", {"query": "salaries", "limit": 1})
            assert run.scope.spend().tool_calls == 1
            assert gated.names == ("search",)
        assert isinstance(caught.value, MCPError)
        assert said(await session.call_tool("search", {"query": "salaries"})) == "3 notes on salaries"
    assert servers.log == ["search q 3", "search salaries 3"]


async def test_a_refusal_by_a_gate_may_be_a_result(servers, instrumented, said):
    async with servers.connect() as session:
        with ravi_otel.instrument_tools("mcp:*", supervisor=Cap(), refused="result"):
            result = await session.call_tool("search", {"query": "salaries", "limit": 1})
    assert getattr(result, "is_error", None) or getattr(result, "isError", None)
    assert "nobody's business" in said(result)
    assert servers.log == []


@pytest.mark.parametrize("transport", ["stdio"])
async def test_a_gate_judges_a_tool_that_names_an_argument_by_a_word_of_python(servers, instrumented, said):
    class From:
        def review(self, action, state, policy):
            from ravi_otel.supervisor import Decision

            return Decision("block" if action["args"].get("from") == "payroll" else "approve", "by where it is from")

    async with servers.connect(program="recorded_requests.py") as session:
        await session.list_tools()
        with ravi_otel.instrument_tools("mcp:notes", supervisor=From()):
            assert said(await session.call_tool("between", {"from": "notes", "to": "desk"})) == "found"
            with pytest.raises(ToolDeniedError, match="by where it is from"):
                await session.call_tool("between", {"from": "payroll"})


@pytest.mark.parametrize("transport", ["stdio"])
@pytest.mark.parametrize("name", ["", "n" * 300, "search\x1b[2J"])
async def test_a_tool_whose_name_no_gate_can_judge_is_denied_behind_one_and_called_without(servers, instrumented, said, name):
    async with servers.connect(program="recorded_requests.py") as session:
        with ravi_otel.instrument_tools("mcp:notes", supervisor=Cap()) as gated, ravi_otel.run("desk", limits=["tool_calls=1"]) as run:
            with pytest.raises(ToolDeniedError, match="no gate can judge it") as caught:
                await session.call_tool(name, {"query": "q"})
            assert isinstance(caught.value, MCPError)
            gated.remove()
            with ravi_otel.instrument_tools("mcp:notes", supervisor=Cap(), refused="result"):
                denied = await session.call_tool(name, {"query": "q"})
            assert getattr(denied, "is_error", None) or getattr(denied, "isError", None)
            assert run.limits[0].used == 0
            assert said(await session.call_tool(name, {"query": "q"})) == "found"


class Asks:
    def review(self, action, state, policy):
        from ravi_otel.supervisor import Decision

        return Decision("escalate", "a person is to look at it")


@pytest.mark.parametrize(("who", "ran"), [("ann", 1), ("bob", 0)])
async def test_only_an_approver_approves_a_call_over_mcp(servers, instrumented, who, ran):
    from ravi_otel.supervisor import ApprovalAnswer, CallbackApprover

    people = {"search": ["ann"], "another tool of that server": ["jo"]}
    person = CallbackApprover(lambda _: ApprovalAnswer(approved=True, who=who))
    async with servers.connect() as session:
        with ravi_otel.instrument_tools("mcp:notes", supervisor=Asks(), approver=person, approvers=people), ravi_otel.run("desk"):
            if ran:
                await session.call_tool("search", {"query": "q", "limit": 1})
            else:
                with pytest.raises(ToolDeniedError, match="bob may not decide about search: ann may"):
                    await session.call_tool("search", {"query": "q", "limit": 1})
    assert len(servers.log) == ran


async def test_a_gate_of_another_server_judges_nothing_here(servers, instrumented, said):
    async with servers.connect() as session:
        with ravi_otel.instrument_tools("mcp:payroll", supervisor=Cap()):
            assert said(await session.call_tool("search", {"query": "salaries"})) == "3 notes on salaries"


def test_everything_is_put_back_as_the_identical_object():
    def held():
        return [value for kind in ClientSession.__mro__ for name, value in vars(kind).items() if name == "send_request"]

    before = held()
    ravi_otel.instrument()
    assert held()[0] is not before[0]
    ravi_otel.uninstrument()
    assert [id(each) for each in held()] == [id(each) for each in before]
