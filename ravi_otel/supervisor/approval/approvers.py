"""Say who may approve the calls of which tools, and whether one who answered is among them.

An identity is how somebody was verified, with their name: `login:anna` is a user of the operating system, `sign-in:anna@acme.com` one whom
the page's proxy has signed in, and `link` is whoever was given the link to one request. A name among `approvers` means a login and a
sign-in of that name; a whole identity means itself alone, and `link` whoever has the link.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.approval import frozen
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest

LINK: Final = "link"
OTHERS: Final = "*"
"""Stands for every tool that is not named, and for an agent's final answer."""

MOST: Final = 100
HOLDER: Final = "whoever has the link"
_LOGIN: Final = "login:"
_SIGN_IN: Final = "sign-in:"


def of_login(name: str) -> str:
    """Return the identity of a user of the operating system."""
    return f"{_LOGIN}{name}"


def of_sign_in(name: str) -> str:
    """Return the identity of one whom a trusted proxy has signed in."""
    return f"{_SIGN_IN}{name}"


def name_of(identity: str) -> str:
    """Return the name of an identity, as it is shown."""
    if identity == LINK:
        return HOLDER
    return identity.partition(":")[2] or identity


@dataclass(frozen=True, slots=True)
class Approvers:
    """Name who may approve the calls of each tool; of a tool that is not in `by_tool` anybody may."""

    by_tool: Mapping[str, tuple[str, ...]]
    requester_may_approve: bool = True

    @classmethod
    def read(cls, parameter: str, given: Any, *, requester_may_approve: bool = True) -> Approvers:
        """Read a list of names for all tools, or a mapping of tools to names; raise ConfigurationError."""
        if given is None:
            return cls({}, requester_may_approve)
        if not isinstance(given, Mapping):
            return cls({OTHERS: _names(parameter, given)}, requester_may_approve)
        by_tool: dict[str, tuple[str, ...]] = {}
        for tool, names in cast("Mapping[Any, Any]", given).items():  # type: ignore[redundant-cast]  # pyright knows nothing of it
            by_tool[checks.name(parameter, tool, "issue_refund")] = _names(f"{parameter}[{tool!r}]", names)
        return cls(by_tool, requester_may_approve)

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the tools that are named."""
        return tuple(tool for tool in self.by_tool if tool != OTHERS)

    def of(self, tool: str) -> tuple[str, ...] | None:
        """Return who may approve a call of a tool, None where anybody may."""
        return self.by_tool.get(tool, self.by_tool.get(OTHERS))


ANYBODY: Final = Approvers({})


def _names(parameter: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise ConfigurationError(f"{parameter}={checks.show(cast('object', given))} must be a list of names, such as ['anna', 'jo'].")
    names = tuple(sorted({checks.name(parameter, each, "anna") for each in cast("Collection[object]", given)}))
    if not names:
        raise ConfigurationError(
            f"{parameter} names nobody, so that nobody could ever approve: name somebody, or have a rule block the tool."
        )
    if len(names) > MOST:
        raise ConfigurationError(f"{parameter} names {len(names)} people; name at most {MOST}.")
    return names


def refusal(request: ApprovalRequest, answer: ApprovalAnswer) -> str | None:
    """Say in one sentence why this answer of theirs does not count, None where it does.

    Only approvers decide. The one who requested may say no, and where they may not approve, neither may anybody who could be them.
    """
    if request.approvers is not None and not _is_named(request.approvers, answer):
        tool = frozen.reading(request.tool, 80)
        return f"{_whose(answer)} may not decide about {tool}: {listed(request.approvers)} may."
    if request.requester_may_approve or not answer.approved:
        return None
    if request.user_id is None:
        return "Nobody knows who requested it, so nobody may approve it: give the run a user."
    name = _name(answer)
    if name is None:
        return f"{_whose(answer)} may be the one who requested it, who may not approve it: somebody who is signed in must."
    if _folded(name) == _folded(request.user_id):
        return f"{_whose(answer)} requested it, and may not approve it: somebody else must."
    return None


def _is_named(names: tuple[str, ...], answer: ApprovalAnswer) -> bool:
    if answer.identity is None:
        return answer.who is not None and answer.who != LINK and answer.who in names
    if answer.identity == LINK:
        return LINK in names
    name = _name(answer)
    if name is None or answer.identity in names:
        return name is not None
    return name != LINK and not name.startswith((_LOGIN, _SIGN_IN)) and name in names  # one may be called `login:anna` elsewhere


def _name(answer: ApprovalAnswer) -> str | None:
    """Return the name by which they were verified, None where nobody did."""
    if answer.identity is None:
        return answer.who
    known = answer.identity.startswith((_LOGIN, _SIGN_IN))
    return name_of(answer.identity) if known else None


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())


def _whose(answer: ApprovalAnswer) -> str:
    """Begin a sentence with who answered."""
    if answer.identity == LINK:
        return HOLDER.capitalize()
    said = answer.who if answer.identity is None else name_of(answer.identity)
    return frozen.reading(said or "", 80) or "Somebody whom nobody named"


def listed(names: tuple[str, ...]) -> str:
    """Write names as a part of a sentence."""
    shown = [frozen.reading(HOLDER if each == LINK else each, 60) for each in names[:5]]
    more = len(names) - len(shown)
    if more:
        shown.append(f"{more} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
