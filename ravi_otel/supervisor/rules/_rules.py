"""Decide by rules, written in code or in a policy file.

Rules read the arguments of a call and the calls that were let through before it in the run. They decide so, the strictest first:

1. **block** if any rule refuses: nothing outweighs that;
2. **revise** if any rule puts something right. All corrections go into one revised action, which the gate validates and has reviewed again
   from the start, so a correction is never a way around the next line;
3. **escalate** if any rule asks for a person, who then sees the arguments as they were put right;
4. **approve** by a rule that approves, else what is the default.

A rule that says nothing approves nothing. What a rule cannot read is refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast, get_args

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor._arguments import ToolSignature
from ravi_otel.supervisor._decisions import Action, Decision, DecisionKind
from ravi_otel.supervisor._json import canonical
from ravi_otel.supervisor._run_state import RunState
from ravi_otel.supervisor.approval._request import Approvers
from ravi_otel.supervisor.rules._kinds import (
    Cap,
    Case,
    DefaultDecision,
    EscalateAbove,
    FillIn,
    FinalNeeds,
    ListedPast,
    Past,
    PastCall,
    ReadOnly,
    Rule,
    Vote,
    read_gate_section,
    with_value,
)

_log = logging.getLogger("ravi_otel")
_NO_RULE_REASONS: Final = {"approve": "no_rule_against", "block": "no_rule_for", "escalate": "no_rule_for"}


class Rules:
    """A supervisor that decides by `rules`; a tool call on which they say nothing is decided by `default`.

    A gate refuses rules about tools that it does not have, unless they are `shared` with other gates: then it says so in the log, once.
    `version` is the SHA-256 of the rules and the default, 64 hex digits: the same rules have the same one in every process. A final answer
    is approved unless a rule refuses it. `approvers` and `requester_may_approve` are as of a `Gate`, which goes by them unless it is given
    its own.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        *,
        default: DefaultDecision = "approve",
        shared: bool = False,
        approvers: Collection[str] | Mapping[str, Collection[str]] | None = None,
        requester_may_approve: bool = True,
    ) -> None:
        self.rules = _read_rules(rules)
        self.shared = checks.flag("shared", shared)
        self._told: set[str] = set()
        self.default = checks.choice("default", default, get_args(DefaultDecision))
        _refuse_silenced_rules(self.rules)
        self._finals = tuple(rule for rule in self.rules if isinstance(rule, FinalNeeds))
        self._of = {tool: self._about(tool) for tool in self.tools}
        flag = checks.flag("requester_may_approve", requester_may_approve)
        self.approvers = Approvers.read("approvers", approvers, requester_may_approve=flag)
        said = canonical([self.default, [each.described() for each in self.rules]])
        self.version = hashlib.sha256(said.encode("ascii")).hexdigest()

    def __repr__(self) -> str:
        return f"<Rules {len(self.rules)}, default {self.default}, version {self.version[:12]}>"

    @classmethod
    def from_file(cls, path: str | Path, *, shared: bool = False) -> Rules:
        """Read the `gate` section of a policy file; raise ConfigurationError with the file, the place and the way out."""
        if not isinstance(path, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ConfigurationError(f"Rules.from_file({checks.show(path)}) takes the path of a policy file, such as 'policy.toml'.")
        rules, default, approvers = read_gate_section(Path(path))
        may = approvers.requester_may_approve
        return cls(rules, default=default, shared=shared, approvers=approvers.by_tool or None, requester_may_approve=may)

    @property
    def tools(self) -> frozenset[str]:
        """Name the tools that a rule is about."""
        return frozenset(tool for rule in self.rules for tool in rule.tools)

    @property
    def read_only(self) -> frozenset[str]:
        """Name the tools that change nothing, as the rules say."""
        return frozenset(tool for rule in self.rules if isinstance(rule, ReadOnly) for tool in rule.tools)

    def may_lack(self, tool: str) -> frozenset[str]:
        """Name the arguments that a call of a tool may leave out, because a rule fills them in."""
        return frozenset(rule.field for rule in self._of.get(tool, ()) if isinstance(rule, FillIn) and "." not in rule.field)

    def _about(self, tool: str) -> tuple[Rule, ...]:
        """List the rules for calls of a tool: what is missing is filled in first, so that the others judge the call as it would be."""
        mine = [rule for rule in self.rules if tool in rule.tools and not isinstance(rule, FinalNeeds)]
        return tuple(sorted(mine, key=lambda each: not isinstance(each, FillIn)))

    def check_tools(
        self, tools: Mapping[str, Callable[..., Any] | ToolSignature] | Iterable[Callable[..., Any]], *, part: bool = False
    ) -> None:
        """Raise ConfigurationError for a rule about a tool that is none of `tools`, or an argument it lacks: it would never speak.

        Where the tools are only a `part`, or the rules are `shared`, a tool that is missing is said in the log, once.
        """
        signatures = _signatures(tools)
        for rule in self.rules:
            for tool in (*rule.tools, *getattr(rule, "first", ()), *getattr(rule, "after", ())):
                if tool not in signatures:
                    self._tell_missing(rule, tool, signatures, part=part)
            for tool in rule.tools:
                if tool in signatures:
                    self._check_fields(rule, signatures[tool])

    def _tell_missing(self, rule: Rule, tool: str, signatures: Mapping[str, ToolSignature], *, part: bool) -> None:
        said = _no_such(f"rule {rule.word} is about tool", tool, signatures, "tools")
        if not (part or self.shared):
            raise ConfigurationError(f"{said} Rules for several gates are made with shared=True.")
        if tool not in self._told:
            self._told.add(tool)
            _log.warning("ravi-otel: %s Here it holds for nothing.", said)

    def _check_fields(self, rule: Rule, signature: ToolSignature) -> None:
        for field in rule.fields_read():
            first = field.partition(".")[0]
            if first not in signature.parameters and signature.rest is None:
                whose = f"rule {rule.word} of tool {signature.name!r} is about argument"
                raise ConfigurationError(_no_such(whose, first, signature.parameters, "arguments"))

    def review(self, action: Action, state: Any, policy: Any = None) -> Decision:  # noqa: ARG002 - a rule has its own figures
        """Decide about one action; it may be asked as often as one likes, and changes nothing.

        `state.calls` are the calls let through so far, as `RunState` has them; where a rule needs them and there are none to be
        read, the call is blocked as `state_unreadable`.
        """
        if type(state) is RunState:  # one of a class derived from it may have calls of its own
            version = state.version
            decision = self._judged(action, state)
            if state.version == version:
                return decision  # all of it was judged by the same calls; else by a list of them, which stands still
        calls: Any = getattr(state, "calls", None)
        return self._judged(action, ListedPast(tuple(cast("Iterable[PastCall]", calls))) if isinstance(calls, (tuple, list)) else None)

    def _judged(self, action: Action, past: Past | None) -> Decision:
        kind, name, args = action.get("kind"), action.get("name"), action.get("args")
        if kind == "final":
            mine: tuple[Rule, ...] = self._finals
        elif kind == "tool" and isinstance(name, str) and isinstance(args, Mapping):
            mine = self._of.get(name, ())
        else:
            return Decision(DecisionKind.BLOCK, "unknown_action_kind")
        if past is None:
            if any(rule.reads_past for rule in mine):
                return Decision(DecisionKind.BLOCK, "state_unreadable")
            past = ListedPast()
        if kind == "final":
            return _judge_final(mine, Case("", {}, past))
        return self._tool(action, mine, Case(cast("str", name), cast("Mapping[str, Any]", args), past))

    def _tool(self, action: Action, mine: tuple[Rule, ...], case: Case) -> Decision:
        votes: list[Vote] = []
        for rule in mine:
            vote = rule.judge(case)
            if vote is not None:
                votes.append(vote)
                if vote.change is not None:
                    case = Case(case.tool, with_value(case.arguments, *vote.change), case.past)
        for kind in (DecisionKind.BLOCK, DecisionKind.REVISE, DecisionKind.ESCALATE, DecisionKind.APPROVE):
            first = next((vote for vote in votes if vote.kind == kind), None)
            if first is not None:
                revised = {**action, "args": case.arguments} if kind == DecisionKind.REVISE else None
                return Decision(kind, first.reason, revised)
        return Decision(DecisionKind(self.default), _NO_RULE_REASONS[self.default])


def _signatures(tools: Mapping[str, Callable[..., Any] | ToolSignature] | Iterable[Callable[..., Any]]) -> dict[str, ToolSignature]:
    if not isinstance(tools, Mapping):
        return {each.name: each for each in map(ToolSignature.of, tools)}
    named = cast("Mapping[str, Callable[..., Any] | ToolSignature]", tools)
    return {name: each if isinstance(each, ToolSignature) else ToolSignature.of(each, name) for name, each in named.items()}


def _judge_final(mine: tuple[Rule, ...], case: Case) -> Decision:
    refused = next((vote for rule in mine if (vote := rule.judge(case)) is not None), None)
    return Decision(DecisionKind.APPROVE, "final_answer") if refused is None else Decision(refused.kind, refused.reason)


def _read_rules(rules: Any) -> tuple[Rule, ...]:
    if isinstance(rules, (str, Rule, Mapping)) or not isinstance(rules, Iterable):
        way_out = "such as [Cap('issue_refund', 'amount_usd', 1000)]"
        raise ConfigurationError(f"rules={checks.show(cast('object', rules))} must be a list of rules, {way_out}.")
    listed: tuple[Any, ...] = tuple(cast("Any", rules))
    wrong = next((each for each in listed if not isinstance(each, Rule)), None)
    if wrong is not None:
        raise ConfigurationError(f"rules has {checks.show(wrong)} in it, which is no rule: write one such as Allow('search').")
    return listed


def _refuse_silenced_rules(rules: Collection[Rule]) -> None:
    """Refuse a cap that lowers every call to what needs no person: the rule that asks one would never speak."""
    for cap in rules:
        for asks in rules:
            if not (isinstance(cap, Cap) and cap.otherwise == "revise" and isinstance(asks, EscalateAbove)):
                continue
            if cap.field == asks.field and set(cap.tools) & set(asks.tools) and cap.most <= asks.most:
                raise ConfigurationError(
                    f"rule cap lowers {cap.field} to most={cap.most}, and escalate_above asks a person above {asks.most}, so nobody would "
                    'ever be asked: give the cap otherwise="escalate" or "block", or a larger most.'
                )


def _no_such(whose: str, name: str, known: Collection[str], what: str) -> str:
    close = checks.nearest(name, known)
    hint = f", did you mean {close!r}" if close else ""
    return f"{whose} {checks.show(name)}, which there is not{hint}; the {what} are {', '.join(known) or 'none'}."[:600]
