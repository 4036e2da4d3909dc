"""Decide about tool calls before they happen: review, approval, loops, audit.

Where what is:

* the way of a call: `gate` stands before tools, and reads what it is made of; `gateway` is a door to some that counts besides; `calls` has
  what a gate decides by, and takes one call to the point where it may run, asking a person on the way.
* what it goes by: `decisions` has the words of a supervisor; `colours` calls what the program gave, to await or not.
* what was done before: `state` remembers a run's calls, with a version, and notices circles.
* arguments: `signatures` holds them to the tool's own, `parameters` each by its annotation, also the values of a program's own call;
  `hashing` reads a model's text and writes them in one way only; `actions` reads what a worker proposes.
* rules: `rules` decides by them, `rules_contract` is what a rule is, `rules_amounts` and `rules_kinds` are the rules, `rules_reading` reads
  for them, `rule_files` finds them in a policy file.
* `approval/` asks people. `audit` writes down, on the chain of `audit_chain`, which `audit_verify` checks.
"""

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
