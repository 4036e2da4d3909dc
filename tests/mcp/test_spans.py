"""One span for each tool call over MCP: the SDK's own where it is heard and says what we know, and else one of ours."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "traced.py"
IS_SPANNED = int(version("mcp").split(".")[0]) >= 2


def spans_of(where):
    ended = subprocess.run([sys.executable, str(PROGRAM), where], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return [span for span in json.loads(ended.stdout) if span["attributes"].get("gen_ai.tool.name") or "tools/call" in span["name"]]


@pytest.mark.parametrize("where", ["global", "private"])
def test_each_call_has_one_span_that_says_what_is_known(where):
    searched, failed, refused = spans_of(where)
    of_sdk = IS_SPANNED and where == "global"
    assert searched["name"] == ("MCP send tools/call search" if of_sdk else "tools/call search")
    assert failed["name"] == ("MCP send tools/call fail" if of_sdk else "tools/call fail")
    assert refused["name"] == "tools/call search"
    for span in (searched, failed, refused):
        said = span["attributes"]
        assert span["kind"] == "CLIENT"
        assert span["parent"] == "invoke_agent clerk"
        assert said["mcp.method.name"] == "tools/call"
        assert said["gen_ai.operation.name"] == "execute_tool"
        assert said["gen_ai.agent.name"] == "clerk"
        assert said["network.transport"] == "pipe"
        assert said["ravi.mcp.server"] == "notes"
        assert said["mcp.protocol.version"].startswith("20")
        assert said["ravi.run.id"]
    assert searched["attributes"]["ravi.limit.decision"] == "admitted"
    assert (searched["status"], failed["status"], refused["status"]) == ("UNSET", "ERROR", "ERROR")
    assert failed["attributes"]["error.type"] == "tool_error"
    assert refused["attributes"]["error.type"] == "ravi.limit_exceeded"
    assert refused["attributes"]["ravi.limit.kind"] == "tool_calls"
