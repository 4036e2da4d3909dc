"""Show what waits for a person and what was decided, and pass on a person's answer."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from ravi_otel._local.wording import clean
from ravi_otel._ui import api
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import JsonObject, JsonValue
from ravi_otel.supervisor import ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor._audit import Verified, newest_first, read_entries, verify_all
from ravi_otel.supervisor._json import fingerprint
from ravi_otel.supervisor.approval._queue import (
    QUEUE_VARIABLE,
    QueueError,
    StoredRequest,
    current_login,
    open_queue,
    who_may_decide,
)
from ravi_otel.supervisor.approval._request import (
    ArgumentField,
    answer_refusal,
    check_edit,
    check_words,
    copy_arguments,
    escape,
    form_fields,
    freeze,
    read_arguments,
    readable,
)

T = TypeVar("T")

_PATIENCE_S: Final = 3.0
_MOST_ANSWERED: Final = 100
_MOST_CALL: Final = 200
_MOST_ENTRIES: Final = 500
_MOST_SENTENCE: Final = 400
_STATES: Final[Mapping[str, api.Tone]] = {
    "pending": "wait",
    "approved": "ok",
    "taken": "ok",
    "rejected": "refused",
    "expired": "paused",
}


class Inbox:
    """Be the queue of approvals, which may not be there yet."""

    def __init__(self, where: str | Path, *, named: str = QUEUE_VARIABLE) -> None:
        self._queue = open_queue(where, named=named)

    @property
    def shown(self) -> str:
        """Return where it is, for people."""
        return self._queue.shown

    def mark(self) -> Sequence[object]:
        """Return a mark that is another one when somebody has written."""
        try:
            return self._queue.changed()
        except QueueError:
            return ()

    def waiting(self, patience_s: float = _PATIENCE_S) -> list[api.Ask]:
        """Return what waits for an answer, oldest first."""
        return [_ask(each) for each in self._all(pending=True, patience_s=patience_s)]

    def all(self, me: ApprovalAnswer) -> api.Inbox:
        """Return the whole queue for whoever looks, of whom `me` is a yes: what waits, and the newest of what is over."""
        waiting = [_ask_for(me, each) for each in self._all(pending=True)]
        over = [each for each in self._all(pending=False) if each.state != "pending"]
        where = clean(self.shown, _MOST_SENTENCE)
        return api.Inbox(where=where, waiting=waiting, answered=[_ask_for(me, each) for each in over[:_MOST_ANSWERED]])

    def find(self, request_id: str) -> StoredRequest:
        """Return one request; ConfigurationError where there is none."""
        if not self._queue.exists():
            raise ConfigurationError(f"there is no queue of approvals at {self.shown!r} yet.")
        return self._do(partial(self._queue.find, request_id))

    def asked(self, request_id: str, me: ApprovalAnswer) -> api.Asked:
        """Return one request with what became of the same before; `me` is a yes of whoever looks, which may not count."""
        stored = self.find(request_id)
        earlier = self._do(partial(self._queue.earlier, stored))
        return api.Asked(ask=_ask_for(me, stored), earlier=[_ask(each) for each in earlier])

    def edited(self, request_id: str, edit: api.Edit) -> api.Edited:
        """Return what an edit would run, and its fingerprint; ConfigurationError for what is not alike."""
        stored = self.find(request_id)
        fresh = self._fresh(stored, edit.arguments)
        asked, policy = stored.request, stored.request.policy_version
        bound_to = "" if policy is None else fingerprint(asked.tool, fresh, asked.scope, policy)
        return api.Edited(arguments=_arguments(asked, fresh), fingerprint=bound_to)

    def answer(self, request_id: str, answer: api.Answer, me: ApprovalAnswer, *, once: bool = False) -> api.Asked:
        """Answer exactly the request that was shown; QueueError when it was answered, has expired or was changed meanwhile.

        With `once` it takes back no approval either, whatever the answer says.
        """
        stored = self.find(request_id)
        if stored.seal != answer.seal:
            raise ConfigurationError("The request is not the one that was shown: load it again.")
        fresh = None if answer.arguments is None else self._fresh(stored, answer.arguments)
        if fresh is not None and freeze(fresh) == freeze(stored.request.arguments):
            fresh = None
        given = replace(me, approved=answer.approved, comment=check_words("comment", answer.comment), arguments=fresh)
        takes_back = answer.takes_back and not once
        self._do(partial(self._queue.answer, stored, given, login=current_login(), takes_back=takes_back))
        return self.asked(stored.id, me)

    def _fresh(self, stored: StoredRequest, arguments: str) -> JsonObject:
        return check_edit(stored.request, read_arguments(arguments))

    def _do(self, act: Callable[[], T], patience_s: float = _PATIENCE_S) -> T:
        return self._queue.retry(act, patience_s)

    def _all(self, *, pending: bool, patience_s: float = _PATIENCE_S) -> list[StoredRequest]:
        if not self._queue.exists():
            return []
        return self._do(partial(self._queue.all, pending=pending, most=2 * _MOST_ANSWERED), patience_s)


def _ask_for(me: ApprovalAnswer, stored: StoredRequest) -> api.Ask:
    """Return a request with what whoever looks may do about it, and of one that waits why they may not approve it."""
    ask = _ask(stored)
    no = ["reject"] if ask.can and answer_refusal(stored.request, replace(me, approved=False)) is None else []
    if stored.state != "pending":
        return ask.model_copy(update={"can": no})
    wrong = answer_refusal(stored.request, me) if ask.can else None
    return ask if wrong is None else ask.model_copy(update={"can": no, "says": wrong})


def _ask(stored: StoredRequest) -> api.Ask:
    asked = stored.request
    can: list[str] = []
    if stored.flaw is None:
        can = {"pending": ["approve", "edit", "reject"], "approved": ["reject"]}.get(stored.state, [])
    return api.Ask(
        id=stored.id,
        tone="error" if stored.flaw is not None else _STATES[stored.state],
        word="waits for approval" if can and stored.state == "pending" else _ended(stored),
        call=_call(asked),
        tool=escape(asked.tool),
        agent=clean(asked.agent_name),
        run=asked.run_id,
        tenant=clean(asked.tenant_id),
        user=clean(asked.user_id),
        op_id=asked.op_id,
        approvers=who_may_decide(asked),
        reason=clean(asked.reason, _MOST_SENTENCE),
        risk=None if asked.risk_score is None else f"{asked.risk_score:g}",
        asked_at=asked.requested_at,
        expires_at=asked.expires_at,
        answered_at=stored.answered_at,
        fingerprint=escape(asked.fingerprint),
        seal=stored.seal,
        arguments=_arguments(asked, stored.edited),
        comment=clean(stored.comment, _MOST_SENTENCE),
        says=stored.abandoned_note(time.time()) if can and stored.state == "pending" else stored.why_not_pending(),
        can=can,
        is_over=stored.flaw is not None or stored.state in ("rejected", "expired") or stored.outcome is not None,
    )


def _ended(stored: StoredRequest) -> str:
    """Say in few words how far it is, and by whom."""
    if stored.flaw is not None:
        return "changed after it was asked"
    if stored.state == "expired":
        return "expired, so it did not run"
    who = stored.answered_by()
    if stored.state == "rejected":
        return f"rejected by {who}"
    ran = {"ok": "ran", "spent": "did not run", None: "not taken yet" if stored.state == "approved" else "runs"}
    how = "edited and approved" if stored.edited is not None else "approved"
    return f"{how} by {who}, {ran.get(stored.outcome, stored.outcome)}"


def _call(asked: ApprovalRequest) -> str:
    arguments = copy_arguments(asked.arguments)
    written = ", ".join(f"{escape(name)}={json.dumps(arguments[name])}" for name in _in_order(asked, arguments))
    return clean(f"{escape(asked.tool)}({written})", _MOST_CALL)


def _arguments(asked: ApprovalRequest, fresh: JsonObject | None) -> list[api.Argument]:
    """Put arguments side by side with what is to run instead, those that its tool would take besides last."""
    before, after = copy_arguments(asked.arguments), copy_arguments(asked.arguments if fresh is None else fresh)
    known = form_fields(asked.schema)
    return [
        api.Argument(
            name=escape(name),
            type=_type(before.get(name, after.get(name)), known.get(name)),
            field=None if name not in known else _field(known[name]),
            value=_json(before[name]) if name in before else None,
            edited=_edited(name, before, after),
            reads=_reading(after.get(name, before.get(name))),
        )
        for name in _in_order(asked, {**before, **after, **known})
    ]


def _in_order(asked: ApprovalRequest, names: Iterable[str]) -> list[str]:
    """Put names in the order in which the tool needs them, where that is known, and the others behind."""
    listed = list(names)
    needed = (asked.schema or {}).get("required")
    first = [str(name) for name in needed if name in listed] if isinstance(needed, Sequence) else []
    return list(dict.fromkeys([*first, *listed]))


def _edited(name: str, before: JsonObject, after: JsonObject) -> str | None:
    """Return the JSON that an argument is edited to, "" where it is left out, None where it is as it was."""
    if name not in after:
        return "" if name in before else None
    return None if name in before and _json(after[name]) == _json(before[name]) else _json(after[name])


def _field(field: ArgumentField) -> api.Field:
    choices = [_json(each) for each in field.choices]
    known: dict[str, Any] = {name: getattr(field, name) for name in api.Field.model_fields}
    known |= {"choices": choices, "about": clean(field.about, _MOST_SENTENCE)}
    return api.Field(**known)


def _type(value: JsonValue, field: ArgumentField | None) -> str:
    if field is not None and field.kind != "json":
        return field.word
    if isinstance(value, bool):
        return "true or false"
    if value is None:
        return "nothing"
    return "text" if isinstance(value, str) else "number" if isinstance(value, int | float) else "JSON"


def _json(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False).replace("\x7f", "\\u007f")


def _reading(value: JsonValue) -> str | None:
    """Return how a value with other letters than ASCII reads, which has no say in what runs."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return None if text.isascii() else readable(text)


# -- the audit ----------------------------------------------------------------------------------------------------


def audit(directory: Path, asked: api.AuditAsk) -> api.Audit:
    """Verify every log of a directory, and return the newest entries that fit; ConfigurationError where it cannot be read."""
    verified = verify_all(directory) if directory.exists() else []
    every = newest_first([entry for each in verified for entry in read_entries(each, clean)])
    fitting = [entry for entry in every if entry.is_of(**asked.model_dump())]
    return api.Audit(
        where=clean(str(directory), _MOST_SENTENCE),
        verified_at=time.strftime("%H:%M:%S"),
        files=len(verified),
        entries=len(every),
        broken=[_file(each) for each in verified if not each.ok],
        found=fitting[:_MOST_ENTRIES],
        more=max(0, len(fitting) - _MOST_ENTRIES),
        runs=_names(entry.run for entry in every),
        tools=_names(entry.tool for entry in every),
        people=_names(entry.who for entry in every if entry.person),
        whats=_names(entry.what for entry in every),
    )


def _file(each: Verified) -> api.AuditFile:
    problems = [clean(problem, _MOST_SENTENCE) for problem in each.problems]
    return api.AuditFile(name=clean(each.path.name, _MOST_CALL), entries=each.entries, line=each.bad_line, problems=problems)


def _names(found: Iterable[str]) -> list[str]:
    return [name for name, _ in Counter(filter(None, found)).most_common(50)]
