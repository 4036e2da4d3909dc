"""Put what the processes said into rows, parents before what is in them; each row has a key that it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ravi_otel.local.live._client import Watched
from ravi_otel.local.live._protocol import ProcessState, RunState, ScopeState


@dataclass(frozen=True, slots=True)
class Row:
    """Be one line: a process, or a scope in it, with the run that it is in.

    `guide` says for each level whether more follows there, own level last; it is empty for a process. `parent` is the key
    of the row it is in. `held` says that an agent around it is paused, so that its own calls are refused, too; `ended` that it is
    not there any more, and is shown because it is selected.
    """

    key: str
    parent: str | None
    guide: tuple[bool, ...]
    watched: Watched
    scope: ScopeState | None = None
    run: RunState | None = None
    held: bool = False
    ended: bool = False

    @property
    def state(self) -> str:
        """Give the scope's state; of a run that was told to end and goes on still, how it was told."""
        if self.scope is None:
            return ""
        if self.ended:
            return "ended"
        if self.scope.kind == "run" and self.run is not None and self.run.status != "open":
            return self.run.status
        return "paused above" if self.held and self.scope.status in ("open", "waiting") else self.scope.status

    @property
    def trouble(self) -> str | None:
        """Say why its process is not seen now, None where all is well."""
        return "has ended" if self.ended else self.watched.trouble


def rows(processes: Iterable[Watched]) -> list[Row]:
    """Give every row, in the order in which processes are numbered and told of their scopes."""
    found: list[Row] = []
    for watched in processes:
        found.append(Row(watched.key, None, (), watched))
        if watched.process is not None:
            found.extend(_tree(watched, watched.process))
    return found


def _tree(watched: Watched, process: ProcessState) -> Iterator[Row]:
    """Walk a process from its outermost scopes down; a run within a run stands where it was opened."""
    runs = {scope.scope_id: run for run in reversed(process.runs) for scope in run.scopes}
    scopes = list({scope.scope_id: scope for run in process.runs for scope in run.scopes}.values())
    below = _children(scopes)
    roots = _roots(scopes, below)
    tops = {scope.scope_id for scope in roots}
    waiting: list[tuple[ScopeState, tuple[bool, ...], str, bool]] = [
        (scope, (at < len(roots),), watched.key, False) for at, scope in enumerate(roots, 1)
    ]
    waiting.reverse()
    while waiting:
        scope, guide, parent, held = waiting.pop()
        key = f"{watched.key}/{scope.scope_id}"
        yield Row(key, parent, guide, watched, scope, runs[scope.scope_id], held)
        held = held or scope.status == "paused"
        children = [child for child in below.get(scope.scope_id, ()) if child.scope_id not in tops]
        waiting.extend((child, (*guide, at < len(children)), key, held) for at, child in reversed(list(enumerate(children, 1))))


def _children(scopes: Sequence[ScopeState]) -> dict[str, list[ScopeState]]:
    found: dict[str, list[ScopeState]] = {}
    for scope in scopes:
        if scope.parent_id is not None:
            found.setdefault(scope.parent_id, []).append(scope)
    return found


def _roots(scopes: Sequence[ScopeState], below: dict[str, list[ScopeState]]) -> list[ScopeState]:
    """Find the scopes in nothing that we know, and one of each ring, so that every scope is below one root."""
    known = {scope.scope_id for scope in scopes}
    reached: set[str] = set()
    roots: list[ScopeState] = []
    for scope in (*(scope for scope in scopes if scope.parent_id not in known), *scopes):
        if scope.scope_id in reached:
            continue
        roots.append(scope)
        waiting = [scope]
        while waiting:
            at = waiting.pop()
            if at.scope_id not in reached:
                reached.add(at.scope_id)
                waiting.extend(below.get(at.scope_id, ()))
    return roots
