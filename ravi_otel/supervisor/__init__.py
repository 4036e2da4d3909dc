"""Decide about tool calls before they happen: review, approval, loops, audit.

Where what is:

* the way of a call: `_gate` stands before tools and `_pending_call` takes one call to the point where it may run, asking a person on the
  way; `_gateway` is a door to some tools that counts besides. `_sync_async` calls what the program gave, to await or not.
* what it goes by: `_decisions` has the words of a supervisor and reads what a worker proposes, `_run_state` remembers a run's calls, and
  notices loops, `_arguments` holds arguments to the tool's signature, `_json` reads and writes them in one way only.
* `rules/` are a supervisor made of rules, `approval/` asks people, and `_audit` writes down what happened, on a chain that can be verified.
"""

import typing as _typing

from ravi_otel._lazy import lazy_names as _lazy_names

if _typing.TYPE_CHECKING:
    from ravi_otel.supervisor._arguments import ToolSignature
    from ravi_otel.supervisor._audit import AuditError, AuditLog
    from ravi_otel.supervisor._decisions import Action, Decision, DecisionKind, GateState, InvalidAction, Supervisor, read_action
    from ravi_otel.supervisor._gate import Gate, gate_for
    from ravi_otel.supervisor._gateway import Budget, ToolGateway
    from ravi_otel.supervisor._pending_call import GateCall
    from ravi_otel.supervisor._run_state import RunState, StatedCall
    from ravi_otel.supervisor.approval._approvers import ApprovalQueue, CallbackApprover, TerminalApprover
    from ravi_otel.supervisor.approval._queue import QueueError
    from ravi_otel.supervisor.approval._request import ApprovalAnswer, ApprovalRequest, Approver
    from ravi_otel.supervisor.rules._rules import Rules

__all__ = [
    "Action",
    "ApprovalAnswer",
    "ApprovalQueue",
    "ApprovalRequest",
    "Approver",
    "AuditError",
    "AuditLog",
    "Budget",
    "CallbackApprover",
    "Decision",
    "DecisionKind",
    "Gate",
    "GateCall",
    "GateState",
    "InvalidAction",
    "QueueError",
    "Rules",
    "RunState",
    "StatedCall",
    "Supervisor",
    "TerminalApprover",
    "ToolGateway",
    "ToolSignature",
    "gate_for",
    "read_action",
]

_HOMES = {
    "_arguments": ("ToolSignature",),
    "_audit": ("AuditError", "AuditLog"),
    "_decisions": ("Action", "Decision", "DecisionKind", "GateState", "InvalidAction", "Supervisor", "read_action"),
    "_gate": ("Gate", "gate_for"),
    "_gateway": ("Budget", "ToolGateway"),
    "_pending_call": ("GateCall",),
    "_run_state": ("RunState", "StatedCall"),
    "approval._approvers": ("ApprovalQueue", "CallbackApprover", "TerminalApprover"),
    "approval._queue": ("QueueError",),
    "approval._request": ("ApprovalAnswer", "ApprovalRequest", "Approver"),
    "rules._rules": ("Rules",),
}
"""Module → the public names that live in it."""

__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
