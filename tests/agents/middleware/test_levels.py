"""How the pipeline knows what a middleware stands around."""

from __future__ import annotations

import functools

import pytest

from ravi_otel.agents.middleware import (
    AgentRun,
    ChatCall,
    MiddlewarePipeline,
    ToolUse,
    agent_middleware,
    chat_middleware,
    levels_of,
    tool_middleware,
)
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy.contracts import (
    AgentMiddleware,
    AgentRunContextProtocol,
    ChatContextProtocol,
    ChatMiddleware,
    FunctionContextProtocol,
    FunctionMiddleware,
    Middleware,
)


class Plain:
    async def process(self, context, call_next):
        await call_next()


def annotated(kind):
    class Annotated:
        async def process(self, context, call_next):
            await call_next()

    Annotated.process.__annotations__["context"] = kind
    return Annotated()


def stating(level):
    plain = Plain()
    plain.level = level
    return plain


def based(base):
    return type("Based", (Plain, base), {})()


KINDS = [
    (AgentRun, "agent"),
    (AgentRunContextProtocol, "agent"),
    (ChatCall, "chat"),
    (ChatContextProtocol, "chat"),
    (ToolUse, "tool"),
    (FunctionContextProtocol, "tool"),
]


@pytest.mark.parametrize(("kind", "level"), KINDS, ids=lambda value: getattr(value, "__name__", value))
def test_the_annotation_of_its_context_says_it(kind, level):
    assert levels_of(annotated(kind)) == (level,)


@pytest.mark.parametrize("written", ["ChatCall", "contexts.ChatCall", "'ChatContextProtocol'"])
def test_an_annotation_that_is_only_there_for_type_checkers_says_it_by_its_name(written):
    assert levels_of(annotated(written)) == ("chat",)


class Own(ChatCall):
    pass


def test_a_class_derived_from_a_context_says_it():
    assert levels_of(annotated(Own)) == ("chat",)


@pytest.mark.parametrize(("base", "level"), [(AgentMiddleware, "agent"), (ChatMiddleware, "chat"), (FunctionMiddleware, "tool")])
def test_the_alias_it_is_derived_from_says_it(base, level):
    class Derived(base):
        async def process(self, context, call_next):
            await call_next()

    class Again(Derived):
        pass

    assert levels_of(Derived()) == levels_of(Again()) == (level,)


def test_the_context_it_is_a_middleware_of_says_it():
    class Derived(Middleware[ToolUse]):
        async def process(self, context, call_next):
            await call_next()

    assert levels_of(Derived()) == ("tool",)


@pytest.mark.parametrize("level", ["agent", "chat", "tool"])
def test_its_level_says_it_before_anything_else(level):
    middleware = annotated(ChatCall)
    middleware.level = level
    assert levels_of(middleware) == (level,)


def test_several_levels_may_be_stated():
    assert levels_of(stating(("tool", "chat"))) == ("chat", "tool")


@pytest.mark.parametrize(("wrap", "level"), [(agent_middleware, "agent"), (chat_middleware, "chat"), (tool_middleware, "tool")])
def test_a_function_is_wrapped_for_its_level(wrap, level):
    async def process(context, call_next):
        await call_next()

    assert levels_of(wrap(process)) == (level,)


def test_a_decorated_process_is_looked_through():
    class Decorated:
        async def process(self, context: ChatCall, call_next):
            await call_next()

        inner = process

        @functools.wraps(inner)
        async def process(self, *args):
            await self.inner(*args)

    assert levels_of(Decorated()) == ("chat",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Plain(), 'Plain does not say what it stands around: give it `level = "chat"`'),
        (annotated(int), "Annotated does not say"),
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
