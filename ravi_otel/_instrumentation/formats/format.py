"""What a wire format is: the requests and answers of one API as our neutral words, whoever carries them, and how its paths are read."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ravi_otel._instrumentation.formats.fields import TOKEN, as_text, get, tokens_in, tokens_of_weight, weight_of
from ravi_otel._instrumentation.formats.framing import Framing
from ravi_otel._instrumentation.model_hosts import seller_at
from ravi_otel.hooks._listeners import raise_from_signal
from ravi_otel.policy._usage import Asked, Call, Message, Reply, ToolUse, Usage

_MOST_QUIET: Final = 2**40
MOST_USES: Final = 10_000
"""Tools that one answer asks for."""
MOST_TEXT: Final = 1_000_000
"""Characters of one stream that are kept; what is told of them is cut far shorter."""
HEAVIEST: Final = 16
"""What a character weighs at most (`fields.weight_of`): more than `TOKEN`, so that a piece never counts as more than its heaviest."""
_MOST_WAITING: Final = 4_096 * HEAVIEST


@dataclass(frozen=True, slots=True)
class Host:
    """Which provider answers, whether that is a guess, and where; `base` is the path its API lies below, `seller` whose prices hold."""

    provider: str
    assumed: bool
    address: str | None
    port: int | None
    base: str = ""
    seller: str = ""

    def __post_init__(self) -> None:
        """Work out whose prices hold, once for all requests."""
        object.__setattr__(self, "seller", self.seller or seller_at(self.provider, self.address))


@dataclass(slots=True, eq=False)
class Request:
    """What is about to be sent: method, path without the base URL, the JSON object or the form's fields, its files.

    The path has the query where the format's framing or streaming is said there.
    """

    method: str
    path: str
    body: Mapping[str, Any]
    host: Host
    stream: bool
    files: Any = None

    def describe(self, operation: str, endpoint: str | None = None, **known: Any) -> Call:
        """Return a call of this request with what every request tells: provider, model, address and whether it streams.

        `known` are more fields of the call; the endpoint is called like the operation unless it is given.
        """
        host = self.host
        if "model" not in known and isinstance(model := self.body.get("model"), str):
            known["model"] = model
        known.setdefault("stream", self.stream)
        return Call(
            operation=operation,
            endpoint=endpoint or operation,
            provider=host.provider,
            provider_assumed=host.assumed,
            server_address=host.address,
            server_port=host.port,
            seller=host.seller,
            **known,
        )


class Collector:
    """Follow a stream, event by event; cheap, because it runs between the network and the user.

    This one learns nothing from its events. Each format says otherwise where it can.
    """

    __slots__ = ()

    @property
    def complete(self) -> bool:
        """Whether the provider said how it ended, so that closing now loses nothing."""
        return False

    @property
    def spoke(self) -> bool:
        """Whether some of the answer's content came, text, a tool's arguments or a sound; True also where there is none."""
        return True

    @property
    def produced(self) -> int:
        """The output tokens that came by what could be seen of them; 0 of a stream that is not counted as it comes."""
        return 0

    @property
    def text(self) -> str:
        """The text that came, of the first answer where there are several; as much of it as was asked for with `keep_text`."""
        return ""

    @property
    def told_input(self) -> int | None:
        """The input tokens that the provider told before the answer; None where it tells them at its end."""
        return None

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """The tools that were asked for until now, where the request offered some; read by other threads, too."""
        return ()

    def keep_text(self, most: int) -> None:
        """Keep so many characters of the text that comes from now on."""

    def be_quiet_until(self, produced: int) -> None:
        """Let `add` be quiet about further text, until so many output tokens came."""

    def add(self, event: Any) -> bool | None:
        """Take in one event as the client parsed it, or as the JSON object it came as.

        True where it is one of those that nobody has to look at: only more text came, and no more than `be_quiet_until` allows.
        """

    def reply(self) -> Reply:
        """Return what was received so far; its usage is the provider's, or estimated, or None when nothing came.

        Its `output` is there when the call's content is captured.
        """
        return Reply()


class TextCollector(Collector):
    """Follow a stream of text: count what comes, and keep the text where somebody asks for it.

    Pieces that cannot reach what `be_quiet_until` allows, however they are counted, wait in `_pieces` to be weighed together:
    as many as weigh `_may_wait` if every character of theirs is the heaviest there is.
    """

    __slots__ = ("_call", "_chunks", "_may_wait", "_pieces", "_quiet_until", "_room", "_texts", "_waits", "_weight")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._chunks: int = 0
        self._weight: int = 0
        self._quiet_until = -1
        self._waits = False  # pieces may wait
        self._pieces: list[str] = []
        self._may_wait = 0
        self._texts: list[str] = []
        self._room = 0

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._weight > 0  # before that no piece waits

    @property
    def produced(self) -> int:
        """See `Collector.produced`: a piece is at least one token; where several are packed together their text tells."""
        self._count_pieces()
        return max(self._chunks, tokens_of_weight(self._weight))

    @property
    def text(self) -> str:
        """See `Collector.text`."""
        self._count_pieces()
        return "".join(self._texts)

    def keep_text(self, most: int) -> None:
        """See `Collector.keep_text`."""
        self._room = most

    def be_quiet_until(self, produced: int) -> None:
        """See `Collector.be_quiet_until`."""
        self._quiet_until = min(produced, _MOST_QUIET)
        self._measure()

    def _wait(self, piece: str) -> bool:
        """Have a piece of plain text wait, after those that do have been weighed; whether it could."""
        self._measure()
        heaviest = len(piece) * HEAVIEST
        if heaviest > self._may_wait:
            return False
        self._may_wait -= heaviest
        self._pieces.append(piece)
        return True

    def _add_text(self, piece: str, *, is_text: bool = True) -> bool:
        """Count a piece of an answer, which is kept where it `is_text`; whether nobody has to look at it."""
        if piece:
            self._chunks += 1
            self._weight += weight_of(piece)
            if is_text and self._room > 0:
                self._texts.append(piece[: self._room])
                self._room -= len(piece)
            self._may_wait = 0  # until it is worked out again
        return self._chunks <= self._quiet_until and self._weight <= self._quiet_until * TOKEN

    def _counted(self) -> Usage:
        """Estimate what a stream used that does not tell it."""
        return Usage(input_tokens=self._call.input_estimate, output_tokens=self.produced, source="estimated")

    def _measure(self) -> None:
        """Work out how much may wait from here on: most texts are far lighter than the heaviest that they were taken for."""
        self._count_pieces()
        self._may_wait = 0
        if self._waits:
            self._may_wait = min(self._quiet_until * TOKEN - max(self._weight, self._chunks * TOKEN), _MOST_WAITING)

    def _count_pieces(self) -> None:
        pieces = self._pieces
        if not pieces:
            return
        self._pieces = []
        together = "".join(pieces)
        self._chunks += len(pieces)
        self._weight += len(together) * 3 if together.isascii() else sum(map(weight_of, pieces))
        if self._room > 0:
            self._texts.append(together[: self._room])
            self._room -= len(together)


class WireFormat(ABC):
    """Read one API. Unless a format knows better there are no messages and no tools, and nothing can be capped."""

    usage_on_request: bool = False
    """Whether a stream tells its usage only when asked to (`stream_options`)."""

    def streams(self, request: Request) -> bool:
        """Whether a request asks for a stream; `request.stream` need not be right yet."""
        return request.body.get("stream") is True

    def framing(self, request: Request) -> Framing:  # noqa: ARG002 - for the formats that read it
        """Return how the events of this request's stream are told apart, where the answer's content type says nothing."""
        return Framing.SSE

    @abstractmethod
    def call(self, request: Request) -> Call:
        """Describe the request."""

    @abstractmethod
    def reply(self, result: Any) -> Reply:
        """Read a complete answer: a model, a mapping, or whatever the server sent."""

    def collector(self, call: Call) -> Collector:  # noqa: ARG002 - for the formats that read it
        """Return what follows a stream of this call."""
        return Collector()

    def asked(self, request: Request) -> Asked | None:  # noqa: ARG002 - for the formats that read it
        """Return what a request says, None where it says nothing in words; only when content is captured."""
        return None

    def answered(self, result: Any) -> Sequence[Message]:  # noqa: ARG002 - for the formats that read it
        """Return what a complete answer says; only when content is captured."""
        return ()

    def bound(self, request: Request, call: Call) -> None:  # noqa: ARG002 - for the formats that read it
        """Write on the call what its input cannot pass, or what hides that; only where a strict limit asks."""
        call.unbounded, call.least_cap = call.endpoint, 0

    def cap(self, request: Request, cap: int) -> Mapping[str, Any]:  # noqa: ARG002 - for the formats that read it
        """Return the fields of the body, each whole, that hold each of its answers to so many tokens."""
        return {}

    def informed(self, headers: Iterable[tuple[bytes, bytes]]) -> WireFormat:  # noqa: ARG002 - for the formats that read it
        """Return what reads an answer that came with these headers: this format, unless they tell of it what its body may not."""
        return self

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:  # noqa: ARG002 - for the formats that read it
        """Return the tools that a complete answer asks the program to run; only where the request offered some."""
        return ()

    def tool_results(self, request: Request) -> Sequence[str | None]:  # noqa: ARG002 - for the formats that read it
        """Return the call ids of the results that a request brings, also of earlier turns; only while results are waited for.

        None stands for one without an id, which answers nothing that can be known.
        """
        return ()


class Unread(WireFormat):
    """Stand for a request that may ask a model in a way nobody here can read: it counts as a request, and nothing else is known of it."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        return request.describe("request", "unread", model=None, turn=False, size=tokens_in(request.body), unread=True)

    def reply(self, result: Any) -> Reply:  # noqa: ARG002 - the protocol's
        """See `WireFormat.reply`."""
        return Reply()


UNREAD: Final = Unread()


class Job(WireFormat):
    """Read what begins work that is paid for later, and told to nobody here: a request, and nothing once a limit is used up."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`; what a job will cost has no price per call."""
        return request.describe("job", model=None, turn=False, stream=False, job=True, unread=True)

    def reply(self, result: Any) -> Reply:  # noqa: ARG002 - the protocol's
        """See `WireFormat.reply`."""
        return Reply()


JOB: Final = Job()


class Hosted(WireFormat):
    """Read a body in one dialect that somebody else hosts, who takes the model's name in the path."""

    def __init__(self, inner: WireFormat) -> None:
        self.inner = inner

    @abstractmethod
    def model_in(self, path: str) -> str | None:
        """Return the model that a path names."""

    def _as_its_own(self, request: Request) -> Request:
        return replace(request, body={**request.body, "model": self.model_in(request.path)}, stream=self.streams(request))

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        return self.inner.call(self._as_its_own(request))

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return self.inner.reply(result)

    def collector(self, call: Call) -> Collector:
        """See `WireFormat.collector`."""
        return self.inner.collector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        return self.inner.asked(request)

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        return self.inner.answered(result)

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`."""
        self.inner.bound(self._as_its_own(request), call)

    def cap(self, request: Request, cap: int) -> Mapping[str, Any]:
        """See `WireFormat.cap`."""
        return self.inner.cap(self._as_its_own(request), cap)

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`."""
        return self.inner.tool_uses(result)

    def tool_results(self, request: Request) -> Sequence[str | None]:
        """See `WireFormat.tool_results`."""
        return self.inner.tool_results(request)


# -- settings of a request under their neutral names ------------------------------------------------------------------------

_OUTPUT_TYPES: Final = {"text": "text", "json_object": "json", "json_schema": "json"}


def _output_type(told: Any) -> str | None:
    if isinstance(told, (list, tuple)):  # the modalities of an answer
        return "speech" if "audio" in told else None
    return _OUTPUT_TYPES.get(told) if isinstance(told, str) else None


_READ_AS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "conversation_id": as_text,
    "output_type": _output_type,
    "reasoning_level": as_text,
    "stop_sequences": lambda told: [told] if isinstance(told, str) else told,
}
"""How the values of some settings are read."""


class Settings:
    """The settings that an API's requests may have: those of the `same` names as ours, and the others as (our name, where it is).

    Of two places of one setting the first that is told counts.
    """

    __slots__ = ("_others", "_places", "_same")

    def __init__(self, same: Iterable[str], *others: tuple[str, ...]) -> None:
        self._same = frozenset(same)
        self._others = others
        self._places = self._same.union(place[1] for place in others)

    def of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a request's body, by our names."""
        found: dict[str, Any] = {}
        if self._places.isdisjoint(body):
            return found
        for name in self._same.intersection(body):
            if body[name] is not None:
                found[name] = body[name]
        for name, first, *further in self._others:
            if first in body and name not in found:
                told = body[first]
                for step in further:
                    told = get(told, step)
                told = _READ_AS[name](told) if name in _READ_AS else told
                if told is not None:
                    found[name] = told
        return found


# -- what an answer is called: whoever answers may write a key into any field, so that only what is shaped like a name passes --------


OTHER: Final = "_OTHER"
"""What stands for a code that is none."""

_USUAL: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "error", "default", "standard", "priority", "flex"})
"""Codes that come with nearly every answer, and are known to be some."""

_MOST_KEPT: Final = 512
_TOO_LONG: Final = 257
"""Characters of a value that are looked at, and kept: no name or code has so many."""

_NAME: Final = re.compile(r"[A-Za-z0-9._:/@+=~-]{1,256}")
_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_OPAQUE: Final = re.compile(r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{12}|[0-9A-Fa-f]{8}[-_][0-9A-Fa-f]{4}[-_]")
"""What no code has: a long run with digits in it, or the beginning of a UUID."""

_KEYS: Final = (
    ("AKIA", "[0-9A-Z]{12}"),
    ("ASIA", "[0-9A-Z]{12}"),
    ("AIza", r"[\w-]{12}"),
    *((begins, r"(?=[\w-]{0,100}\d)[\w-]{8}") for begins in ("sk[-_]", "pk[-_]", "rk[-_]")),
    *((begins, r"[\w-]{12}") for begins in ("gsk_", "xai-", "hf_", "r8_", "npm_", "pypi-", "glpat-", "github_pat_", "gh[opsur]_")),
    *((begins, r"[\w-]{12}") for begins in ("xox[abeoprs]-", "pplx-", "nvapi-", r"ya29\.")),
)
"""What the keys of vendors begin with, none of it after a letter, and what follows."""

# Each alternative begins with letters: where none of them stands there is nothing else to look at, and ids are searched at every call.
_KEY: Final = re.compile(
    "|".join(
        (
            r"eyJ[\w-]{8}",
            *(f"{begins}(?<![A-Za-z]{begins}){follows}" for begins, follows in _KEYS),
            "c2st(?<![A-Za-z0-9]c2st)[A-Za-z0-9+/]{12}",  # `sk-`, in base 64
        )
    )
)


def shaped(reply: Reply, asked: str | None = None) -> Reply:
    """Return the reply without ids and names of another shape, or that look like a key, and with `_OTHER` for such codes.

    `asked` is the model that the program named, which is told as it is.
    """
    if reply.id is not None and (not _NAME.fullmatch(reply.id) or _KEY.search(reply.id)):
        reply.id = None
    if reply.model is not None and reply.model != asked and not _is_known_name(reply.model[:_TOO_LONG]):
        reply.model = None
    if not _USUAL.issuperset(reply.finish_reasons):
        reply.finish_reasons = tuple([code(one) for one in reply.finish_reasons])
    if reply.error_type is not None:
        reply.error_type = code(reply.error_type)
    if reply.service_tier is not None and reply.service_tier not in _USUAL and not _is_word(reply.service_tier[:_TOO_LONG]):
        reply.service_tier = None
    if reply.system_fingerprint is not None and not _is_known_name(reply.system_fingerprint[:_TOO_LONG]):
        reply.system_fingerprint = None
    if reply.conversation_id is not None and not _is_name(reply.conversation_id):
        reply.conversation_id = None
    return reply


def code(value: str) -> str:
    """Return a code or a reason, `_OTHER` for what is none: it is words of an API, and no long run of letters and digits."""
    return value if _is_word(value[:_TOO_LONG]) else OTHER


def _is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None and _KEY.search(value) is None


_is_known_name: Final = lru_cache(maxsize=_MOST_KEPT)(_is_name)
"""The same, for names that come with every answer."""


@lru_cache(maxsize=_MOST_KEPT)
def _is_word(value: str) -> bool:
    return _CODE.fullmatch(value) is not None and _OPAQUE.search(value) is None and _KEY.search(value) is None


# -- reading ---------------------------------------------------------------------------------------------------------


def read_result(wire_format: WireFormat, result: Any, call: Call) -> Reply:
    """Return what an answer says: its usage and names, and its words where the call's content is captured."""
    reply = shaped(wire_format.reply(result), call.model)
    if call.offers_tools:
        reply.tool_uses = wire_format.tool_uses(result)
    if call.content is not None:
        reply.output = wire_format.answered(result)
    return reply


def read_body(wire_format: WireFormat, content: Callable[[], bytes], call: Call) -> Reply:
    """Return what a body says; one that is not what it should be, not whole, too large or gone is unknown."""
    try:
        found = json.loads(content())
    except Exception as error:  # noqa: BLE001 - a server sends what it likes
        raise_from_signal(error)
        return Reply()
    return read_result(wire_format, found, call)


def read_events(collector: Collector, call: Call) -> Reply:
    """Return what the events of a stream said until now."""
    return shaped(collector.reply(), call.model)


# -- paths: the one a client will really send, however it was spelled, and those an API is known to have --------------

READS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""Methods that begin nothing."""

_MOST_NAMED: Final = 4
_VERSION: Final = re.compile(r"v\d{1,3}")
_ID: Final = re.compile(r"(?=.*\d|.{20})[a-z0-9._~-]{1,128}")
"""What ids end a path with. A plain word there may as well be the name of something to do."""


@lru_cache(maxsize=_MOST_KEPT)
def segments(path: str, base: str = "") -> tuple[str, ...]:
    """Return the segments below `base`, plain: no host, query, fragment or parameters, `.` and `..` resolved, lower case.

    An absolute URL stands for itself, whatever the base is. Two spellings a server may take for one are one here.
    """
    try:
        split = urlsplit(path)
    except ValueError:  # the client will refuse it, too
        whole = path
    else:
        whole = split.path if split.scheme and split.netloc else f"{base}/{split.path}"
    found: list[str] = []
    for raw in unquote(whole).replace("\\", "/").lower().split("/"):
        part = raw.partition(";")[0].partition("?")[0].partition("#")[0].strip()
        if part == "..":
            del found[-1:]
        elif part not in ("", "."):
            found.append(part)
    return tuple(found)


def below_version(parts: tuple[str, ...], root: str = "") -> tuple[str, ...]:
    """Return the segments below an API's version, where there is one, and below `root`."""
    at = next((at for at, part in enumerate(parts) if _VERSION.fullmatch(part)), -1)
    parts = parts[at + 1 :]
    while parts and (parts[0] == root or _VERSION.fullmatch(parts[0])):
        parts = parts[1:]
    return parts


def named(path: str, words: frozenset[str]) -> str:
    """Return a path without its ids, so that few distinct ones exist: `/files/file-9x1/content` is `files.content`.

    `words` are those of an API's paths. Any other segment may be an id, a name or a key, and is nobody's business.
    """
    found = [part for part in path.partition("?")[0].split("/") if part in words]
    return ".".join(found[:_MOST_NAMED]) or "request"


class Shapes:
    """Hold the paths of an API that are alike in what they ask for.

    They are written `files files/*/content`, where `*` stands for an id, `x*` for one that begins so, and `a|b` for either of
    two words.
    """

    __slots__ = ("_shapes",)

    def __init__(self, *written: str) -> None:
        self._shapes = frozenset(_spelled(" ".join(written).split()))

    def has(self, parts: tuple[str, ...]) -> bool:
        """Whether a path is one of these; what stands for an id at its end must look like one."""
        return any(len(shape) == len(parts) and _fits(parts, shape) for shape in self._shapes)


def _spelled(written: Iterable[str]) -> Iterable[tuple[str, ...]]:
    for one in written:
        yield from product(*(part.split("|") for part in one.split("/")))


def _fits(parts: tuple[str, ...], shape: tuple[str, ...]) -> bool:
    if shape[-1].endswith("*") and _ID.fullmatch(parts[-1]) is None:
        return False
    return all(part.startswith(wanted[:-1]) if wanted.endswith("*") else part == wanted for part, wanted in zip(parts, shape, strict=True))
