"""Decide about tool calls before they happen: review, approval, loops, audit."""

from ravi_otel.supervisor.approval.callback import CallbackApprover
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest, Approver
from ravi_otel.supervisor.approval.queue import ApprovalQueue
from ravi_otel.supervisor.approval.terminal import TerminalApprover
from ravi_otel.supervisor.audit import AuditLog
from ravi_otel.supervisor.decisions import Action, Decision, DecisionKind, GateState, Supervisor
from ravi_otel.supervisor.gate import Gate, gate_for
from ravi_otel.supervisor.gateway import Budget, ToolGateway
from ravi_otel.supervisor.rules import Rules
from ravi_otel.supervisor.state import RunState

__all__ = [
    "Action",
    "ApprovalAnswer",
    "ApprovalQueue",
    "ApprovalRequest",
    "Approver",
    "AuditLog",
    "Budget",
    "CallbackApprover",
    "Decision",
    "DecisionKind",
    "Gate",
    "GateState",
    "Rules",
    "RunState",
    "Supervisor",
    "TerminalApprover",
    "ToolGateway",
    "gate_for",
]
