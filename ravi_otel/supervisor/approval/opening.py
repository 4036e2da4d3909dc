"""Open the queue of approvals that is named: a file, or a Redis that many machines reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ravi_otel._extras import load
from ravi_otel._flow import Flow
from ravi_otel.supervisor.approval.contract import ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor.approval.place import VARIABLE, is_url
from ravi_otel.supervisor.approval.rows import QueueError, StoredRequest
from ravi_otel.supervisor.approval.store import OUT, QueueFile

if TYPE_CHECKING:
    from ravi_otel.supervisor.approval.redis_store import RedisStore

T = TypeVar("T")


class RequestStore(Protocol):
    """Keep requests; each method is one step, which raises QueueError, or Busy while it cannot be done. See `QueueFile`."""

    @property
    def shown(self) -> str:
        """Return where it is, for people; no secret is in it."""
        ...

    def exists(self) -> bool:
        """Whether there is a queue to look into."""
        ...

    def enter(self, request: ApprovalRequest, seal: str) -> ApprovalAnswer | StoredRequest:
        """Take the answer that is there for exactly this request, else find it in the queue or put it in."""
        ...

    def look(self, row_id: str) -> StoredRequest | None:
        """Read one request, without writing; None when it is gone."""
        ...

    def wait(self, row_id: str) -> None:
        """Note that its program waits for the answer still."""
        ...

    def tell_refusal(self, row_id: str) -> None:
        """Note that a refusal reached who waited for it."""
        ...

    def end(self, request: ApprovalRequest, status: str) -> None:
        """Note how the call ended that an approval was taken for; one that never ran is approved still."""
        ...

    def answer(self, shown: StoredRequest, answer: ApprovalAnswer, *, login: str, takes_back: bool = True) -> StoredRequest:
        """Answer the request that was shown; QueueError when it was answered, has expired or was changed meanwhile."""
        ...

    def find(self, wanted: str) -> StoredRequest:
        """Give the request of that id, or whose id begins so; ConfigurationError when there is not one."""
        ...

    def all(self, *, pending: bool, most: int) -> list[StoredRequest]:
        """List requests, the oldest first of those to be answered, else the newest first."""
        ...

    def earlier(self, stored: StoredRequest, most: int = 5) -> list[StoredRequest]:
        """List what became of the same request before."""
        ...

    def prune(self, older_than_s: float, *, dry_run: bool = False) -> int:
        """Delete what was over before so many seconds ago, and say how much."""
        ...

    def erase(self, ids: Mapping[str, Sequence[str]], *, dry_run: bool = False) -> int:
        """Delete what has one of these values in one of these columns, and say how much."""
        ...

    def changed(self) -> Sequence[object]:
        """Give a mark that is another one when somebody has written."""
        ...

    def patiently(self, act: Callable[[], T], patience_s: float = ...) -> T:
        """Do a step as soon as it can be done, and keep the thread meanwhile; QueueError when it cannot for so long."""
        ...

    def step(self, act: Callable[[], T]) -> Flow[T]:
        """Do a step in a flow, which keeps no event loop."""
        ...

    def locked(self) -> QueueError:
        """Say why a step cannot be done."""
        ...


def open_store(
    where: str | Path, *, clock: Callable[[], float] | None = None, create: bool = False, out: str = OUT, named: str = VARIABLE
) -> RequestStore:
    """Open what `where` names, the path of a file or a URL; ConfigurationError for a URL that names no queue.

    `named` is what named it, and `out` what an error about a file says to do.
    """
    if isinstance(where, Path) or not is_url(where):
        return QueueFile(Path(where), create=create, out=out) if clock is None else QueueFile(Path(where), clock, create=create, out=out)
    made: type[RedisStore] = load("ravi_otel.supervisor.approval.redis_store").RedisStore
    return made(where, clock, named=named)
