"""Where an argument makes our own reading of it fail, the call goes through as ever."""

from __future__ import annotations

from typing import Any

import pytest
from odd_answers import ANSWERS
from operations import ALL
from seen import got, shown
from side_by_side import Case, Program


class Unmeasured(str):
    """Nobody may ask how long it is, unless it is put on the wire."""

    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("of no length")


def asks(path: str, *, stream: bool) -> Program:
    async def run(client: Any) -> Any:
        resource: Any = client.chat.completions if path == "chat" else client.responses
        said: Any = Unmeasured("how long is this?")
        given = {"messages": [{"role": "user", "content": said}]} if path == "chat" else {"input": said}
        return await shown(await got(resource.create(model="gpt-4o-mini", **given, **({"stream": True} if stream else {}))))

    return run


@pytest.mark.parametrize("capturing", [False, True], ids=["without content", "with content"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("path", ["chat", "responses"])
def test_a_text_that_raises_when_measured_is_sent_and_answered(
    path: str, stream: bool, capturing: bool, colour: str, side_by_side: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAVI_RAISE_BUGS")
    operation = ALL[f"{path} stream" if stream else path]
    case = Case("unmeasured", asks(path, stream=stream), ANSWERS["as ever"](operation), colour)
    told = side_by_side.differences([case], capturing=capturing)
    logs = [line for line in told.pop("unmeasured", []) if not line.startswith(".logs")]
    assert (logs, told) == ([], {})
    assert side_by_side.wire.sent
