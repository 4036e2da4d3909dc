"""How the pipeline knows what a middleware stands around."""

from __future__ import annotations

import pytest

from ravi_otel.agents.middleware import (
    ChatCall,
    MiddlewarePipeline,
    agent_middleware,
    chat_middleware,
    levels_of,
    tool_middleware,
)
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import Middleware


class Plain:
    async def process(self, context, call_next):
        await call_next()


def stating(level):
    plain = Plain()
    plain.level = level
    return plain


@pytest.mark.parametrize("level", ["agent", "chat", "tool"])
def test_its_level_says_it(level):
    assert levels_of(stating(level)) == (level,)


class Annotated(Middleware[ChatCall]):
    async def process(self, context: ChatCall, call_next):
        await call_next()


def test_several_levels_may_be_stated():
    assert levels_of(stating(("tool", "chat"))) == ("chat", "tool")


@pytest.mark.parametrize(("wrap", "level"), [(agent_middleware, "agent"), (chat_middleware, "chat"), (tool_middleware, "tool")])
def test_a_function_is_wrapped_for_its_level(wrap, level):
    async def process(context, call_next):
        await call_next()

    assert levels_of(wrap(process)) == (level,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Plain(), 'Plain does not say what it stands around: give it `level = "chat"`'),
        (Annotated(), 'Annotated does not say what it stands around: give it `level = "chat"`'),
        (Plain, "Plain is a class; give an instance of it, Plain(...)"),
        (len, "is a function; wrap it in chat_middleware()"),
        (object(), "has no process()"),
        (stating("chats"), "level='chats' of middleware Plain must be 'agent', 'chat' or 'tool', or some of them; did you mean 'chat'?"),
        (stating(("chat", "all")), "level=['chat', 'all']"),
        (stating(()), "level=[]"),
        (stating(7), "level=7"),
    ],
)
def test_what_cannot_be_known_is_refused_in_a_sentence(given, said):
    with pytest.raises(ConfigurationError) as refused:
        MiddlewarePipeline(given)
    assert said in str(refused.value)


def test_a_wrapper_takes_only_what_can_be_called():
    with pytest.raises(ConfigurationError, match="chat_middleware\\(3\\) is no function"):
        chat_middleware(3)
