"""Secrets that a model never sees, and tool calls that are written down."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace

import anyio
import pytest

import ravi_otel
from ravi_otel import errors
from ravi_otel.agents._model import ResponseMessage, to_responses
from ravi_otel.agents.middleware import AuditTrail, MiddlewarePipeline, Redaction, tool_middleware
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.supervisor import AuditError, AuditLog

pytestmark = pytest.mark.anyio
MAIL = "bob@example.com"


def call(arguments):
    return {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}


async def test_the_model_is_sent_no_secret(stage, ask):
    messages = [
        ChatMessage("user", f"write to {MAIL}"),
        ChatMessage("assistant", None, tool_calls=(call(f'{{"to": "{MAIL}"}}'),)),
        ChatMessage("tool", f"sent to {MAIL}", tool_call_id="1"),
    ]
    context = await ask(Redaction(), messages=messages)
    assert MAIL.encode() not in stage.requests[0].raw
    assert b"[redacted:email]" in stage.requests[0].raw
    assert context.messages == messages


async def test_the_instructions_are_redacted_too(instrumented, chat):
    seen = []

    async def final(context):
        seen.append(context.system_instructions)
        raise errors.StopRun("seen")

    with pytest.raises(errors.StopRun):
        await MiddlewarePipeline(Redaction()).run_chat(chat(system_instructions=f"You are {MAIL}."), final)
    assert seen == ["You are [redacted:email]."]


async def test_it_says_so_where_something_was_replaced(stage, ask, effects):
    with ravi_otel.run("r"):
        await ask(Redaction())
        await ask(Redaction(), text=MAIL)
    assert [effect for effect, _ in effects()] == ["redacted"]


def broken(text):
    raise ValueError(text)


@pytest.mark.parametrize(("redact", "said"), [(broken, "the hook raised ValueError"), (lambda text: None, "the hook gave NoneType")])
async def test_where_redaction_fails_nothing_is_sent(stage, ask, redact, said):
    with pytest.raises(errors.MiddlewareTermination, match=said) as ended:
        await ask(Redaction(redact), text="secret")
    assert "secret" not in str(ended.value)
    assert stage.sent == 0


async def test_a_hook_of_the_programs_own_is_used(stage, ask):
    await ask(Redaction(lambda text: text.replace("Acme", "[customer]")), text="Acme called")
    assert b"[customer] called" in stage.requests[0].raw


async def test_what_is_no_function_is_refused_in_a_sentence():
    with pytest.raises(errors.ConfigurationError, match=r"Redaction\(redact='x'\)"):
        Redaction("x")


class Notes(AuditLog):
    """Be an audit log that also remembers what it was told."""

    def __init__(self, directory):
        super().__init__(directory)
        self.told = []

    def note(self, what, **facts):
        super().note(what, **facts)
        self.told.append((what, facts["tool"], facts.get("status"), facts["op_id"]))


def ending(error):
    async def final(context):
        if error is not None:
            raise error

    return final


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "ok"),
        (ValueError("v"), "error"),
        (errors.ToolDeniedError("d", tool="look"), "refused"),
        (errors.StopRun("s"), "refused"),
        (errors.BudgetExhaustedError("b"), "refused"),
        (errors.CancellationError("c"), "cancelled"),
        (KeyboardInterrupt(), "cancelled"),
    ],
    ids=repr,
)
async def test_a_tool_call_is_noted_before_and_after(instrumented, tool, tmp_path, error, status):
    log = Notes(tmp_path)
    with nullcontext() if error is None else pytest.raises(type(error)):
        await MiddlewarePipeline(AuditTrail(log)).run_tool(tool({"n": 1}), ending(error))
    (proposed, executed) = log.told
    assert proposed[:3] == ("proposed", "look", None)
    assert executed[:3] == ("executed", "look", status)
    assert proposed[3] == executed[3]


async def test_a_tool_that_a_middleware_answered_for_did_not_run(instrumented, tool, tmp_path):
    @tool_middleware
    async def knowing(context, call_next):
        context.result = 7

    log = Notes(tmp_path)
    await MiddlewarePipeline(AuditTrail(log), knowing).run_tool(tool(), ending(None))
    assert log.told[1][2] == "answered"


async def test_a_call_that_cannot_be_noted_is_not_made(instrumented, tool, tmp_path):
    (tmp_path / "file").write_text("in the way")
    context = tool()
    with pytest.raises(errors.RaviError):
        await MiddlewarePipeline(AuditTrail(AuditLog(tmp_path / "file"))).run_tool(context, ending(None))
    assert context.calls == 0


async def test_what_ended_a_call_is_not_lost_where_it_cannot_be_noted(instrumented, tool, tmp_path):
    class Full(AuditLog):
        def note(self, what, **facts):
            if what == "executed":
                raise AuditError("the disk is full")
            super().note(what, **facts)

    pipeline = MiddlewarePipeline(AuditTrail(Full(tmp_path)))
    with pytest.raises(KeyboardInterrupt) as raised:
        await pipeline.run_tool(tool(), ending(KeyboardInterrupt()))
    assert raised.value.__notes__ == ["ravi-otel: the disk is full"]
    with pytest.raises(AuditError):
        await pipeline.run_tool(tool(), ending(None))


async def test_the_event_loop_goes_on_while_a_line_is_written(instrumented, tool, tmp_path):
    loop, threads = threading.get_ident(), []

    class Where(Notes):
        def note(self, what, **facts):
            threads.append(threading.get_ident())
            super().note(what, **facts)

    log = Where(tmp_path)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(MiddlewarePipeline(AuditTrail(log)).run_tool, tool(), ending(None))
    assert loop not in threads
    told = {op_id: [what for what, *_, each in log.told if each == op_id] for *_, op_id in log.told}
    assert list(told.values()) == [["proposed", "executed"]] * 5


@pytest.mark.parametrize("given", ["audit", AuditLog])
async def test_what_cannot_be_written_to_is_refused_when_the_trail_is_made(given):
    with pytest.raises(
        errors.ConfigurationError, match=r"^AuditTrail\(log\)=('audit' is no AuditLog; give AuditLog|AuditLog is a class; give an)"
    ):
        AuditTrail(given)


def came_with(*items):
    """Make an assistant's message of the Responses API, which asks for a tool and came with these items besides."""
    asked = {"type": "function_call", "id": "f1", "call_id": "1", "name": "look", "arguments": "{}"}
    return ResponseMessage("assistant", "I look.", tool_calls=(call("{}"),), items=(*items, asked))


@pytest.mark.parametrize(
    "item",
    [
        {"type": "mcp_call", "id": "m1", "name": "read", "arguments": "{}", "output": f"from {MAIL}"},
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": f"So {MAIL}"}]},
    ],
)
async def test_what_a_message_of_the_responses_api_came_with_is_not_sent_back_with_a_secret(instrumented, chat, item):
    sent = []

    async def final(context):
        sent.extend(to_responses(context.messages))
        raise errors.StopRun("sent")

    for message in (came_with(item), replace(came_with(), content=f"I look for {MAIL}.")):
        sent.clear()
        with pytest.raises(errors.StopRun):
            await MiddlewarePipeline(Redaction()).run_chat(chat(messages=[message]), final)
        assert MAIL not in str(sent)
        assert [each.get("type", each.get("role")) for each in sent] == ["assistant", "function_call"]


async def test_what_it_came_with_stays_where_nothing_is_secret_and_sealed_things_are_not_looked_into(instrumented, chat):
    message = came_with({"type": "reasoning", "id": f"rs_{MAIL}", "encrypted_content": MAIL, "summary": []})
    seen = []

    async def final(context):
        seen.extend(context.messages)
        raise errors.StopRun("seen")

    with pytest.raises(errors.StopRun):
        await MiddlewarePipeline(Redaction()).run_chat(chat(messages=[message]), final)
    assert seen == [message]
    assert seen[0].items == message.items
