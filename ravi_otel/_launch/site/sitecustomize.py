"""Run at the start of every Python process of a program under `ravi-otel run`, before the program itself.

Python imports the first `sitecustomize` on its path, and that is this one; the one it shadows runs right after. It is
no part of the package, and imports nothing that Python has not imported already: what it imported, a module of the
same name beside the program's script could no longer be. It says that this process is attached, and waits for the
program to import a client, or us, or to ask a model over plain HTTP, because most processes of a program never do.
"""
# mypy: ignore-errors
# pyright: basic

import _frozen_importlib as _machinery
import _frozen_importlib_external as _files
import _thread
import atexit
import os
import sys
import time

_AWAITED = ("openai", "anthropic", "groq", "ravi_otel", "mcp.client.session")
"""The clients and our own package: a program may have limited tools and agents, or MCP tools, without any client."""

_OVER_HTTP = ("google.genai", "mistralai.sdk", "mistralai.client.sdk", "cohere", "ollama", "litellm")
"""Clients whose requests are read in the HTTP library below them, and which name the hosts that they are made for."""


_PORTS = {"https": 443, "http": 80}
_COROUTINE = 128
"""The flag of code that is awaited (`inspect.CO_COROUTINE`)."""


class _Waiting:
    """A first finder on `sys.meta_path` that calls an action after each import of an awaited module."""

    def __init__(self, acts):
        self._acts = acts

    def find_spec(self, fullname, path=None, target=None):
        act = self._acts.get(fullname)
        if act is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loading(spec.loader, act)
                return spec
        return None


class _Loading:
    """A loader that delegates to a package's own loader, and then calls the action."""

    def __init__(self, loader, act):
        self._loader = loader
        self._act = act

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act(module)


class _Doors:
    """Thin wrappers of HTTP libraries and botocore; the first request to a model opens them: we begin, and it goes on through our wrappers.

    Open ones stay below our wrappers: if they were removed first, requests of other threads would go unnoticed in between.
    """

    def __init__(self, here, begin):
        self._here = here
        self._begin = begin
        self._opened = False
        self._provider_at = None
        self._named = {part.partition("=")[0].strip().lower() for part in os.environ.get("RAVI_FORMATS", "").split(",") if "=" in part}
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def acts(self, limited):
        """Return the actions by imported module; if the program is `limited`, they also detect calls that no limit covers."""
        below = {
            "http.client": lambda module: self._close(module.HTTPConnection, "endheaders", self._by_http_client),
            "httpcore": self._close_httpcore,
            "httpcore2": self._close_httpcore,
        }
        return {
            **dict.fromkeys(("httpx._client", "httpx2._client"), self._close_httpx),
            "urllib3.connectionpool": lambda module: self._close(module.HTTPConnectionPool, "urlopen", self._by_urllib3),
            "aiohttp": lambda module: self._close(module.ClientSession, "_request", self._by_aiohttp),
            "botocore.client": lambda module: self._close(module.ClientCreator, "create_client", self._by_botocore),
            **(below if limited else {}),
        }

    def open(self, _module=None):
        """Begin; once more where a client was imported again."""
        with self._lock:
            self._begin()
            self._opened = True

    def _renew(self):
        self._lock = _thread.RLock()

    def _close_httpx(self, module):
        for each in (module.Client, module.AsyncClient):
            self._close(each, "send", self._by_httpx)

    def _close_httpcore(self, module):
        for prefix, name in (("", "handle_request"), ("Async", "handle_async_request")):
            for each in ("HTTP11Connection", "HTTP2Connection"):
                self._close(getattr(module, prefix + each), name, self._by_httpcore)

    def _close(self, owner, name, asks_model):
        original = owner.__dict__.get(name)
        if original is None or self._opened:
            return

        def behind(*args, **kwargs):
            if self._opened:
                return original
            in_place = getattr(owner.__dict__.get(name), "__wrapped__", None) is original
            try:
                opens = asks_model(*args, **kwargs)
                if opens:
                    with self._lock:  # concurrent requests wait
                        if not self._opened:
                            self.open()
            except Exception:  # a request that cannot be inspected goes on as it is
                opens = False
            return getattr(owner, name) if opens and in_place else original

        def plain(*args, **kwargs):
            return behind(*args, **kwargs)(*args, **kwargs)

        async def awaited(*args, **kwargs):
            return await behind(*args, **kwargs)(*args, **kwargs)

        door = awaited if original.__code__.co_flags & _COROUTINE else plain
        setattr(owner, name, _alike(door, original))

    def _is_known(self, host, port):
        if self._provider_at is None:
            names = {}
            with open(os.path.join(self._here, "..", "..", "_instrumentation", "model_hosts.py"), encoding="utf-8") as file:
                exec(file.read(), names)
            self._provider_at = names["provider_at"]
        name = (host or "").lower().rstrip(".")
        return self._provider_at(name, port) is not None or name in self._named or "%s:%s" % (name, port) in self._named

    def _is_known_url(self, target):
        """Whether a whole URL, as a proxy gets it, is a model's."""
        scheme, _, rest = target.decode("latin-1").partition("://")
        if scheme.lower() not in ("http", "https"):
            return False
        host, _, port = rest.partition("/")[0].rpartition("@")[2].partition(":")
        return self._is_known(host, int(port) if port.isdigit() else _PORTS[scheme.lower()])

    def _by_http_client(self, connection, *_, **__):
        host, port = (connection._tunnel_host, connection._tunnel_port) if connection._tunnel_host else (connection.host, connection.port)
        return self._is_known(host, port) or self._is_known_url(connection._buffer[0].split(b" ")[1])

    def _by_httpcore(self, _connection, request):
        return self._is_known(request.url.host.decode("latin-1"), request.url.port) or self._is_known_url(request.url.target)

    def _by_httpx(self, _client, request, *_, **__):
        return self._is_known(request.url.host, request.url.port or _PORTS.get(request.url.scheme))

    def _by_urllib3(self, pool, method, url, *_, **__):
        return self._is_known(pool.host, pool.port or _PORTS.get(pool.scheme)) or self._is_known_url(url.encode("latin-1", "replace"))

    def _by_aiohttp(self, session, _method, url, *_, **__):
        to = session._build_url(url)
        return self._is_known(to.raw_host, to.port)

    def _by_botocore(self, _creator, service_name, *_, **__):
        return str(service_name).startswith("bedrock")


def _alike(door, original):
    for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(door, attribute, getattr(original, attribute))
    door.__wrapped__ = original
    return door


def _version():
    """Read the version of our package that this interpreter would import, without importing it."""
    spec = _files.PathFinder.find_spec("ravi_otel")
    for place in (spec and spec.submodule_search_locations) or ():
        names = {}
        try:
            with open(os.path.join(place, "_version.py"), encoding="utf-8") as file:
                exec(file.read(), names)
        except OSError:
            continue
        return names.get("__version__")
    return None


def _tell_launcher():
    """Report on the inherited descriptor that this process is attached; its inode is checked, as the number may be another file's."""
    number, _, inode = os.environ.pop("RAVI_LAUNCH_FD", "").partition(":")
    try:
        descriptor = int(number)
        if os.fstat(descriptor).st_ino == int(inode):
            os.write(descriptor, b"attached %d\n" % os.getpid())
            os.close(descriptor)
    except (OSError, ValueError):
        pass


def _send(messages, what, why="", unkept=False):
    """Send the launcher a message, and write a line on standard error when something is wrong."""
    if why and sys.stderr is not None:
        sys.stderr.write("ravi-otel: process %d is not observed and its limits are not in force: %s\n" % (os.getpid(), why))
    text = "".join(sign if sign.isalnum() and sign.isascii() else "\\u%04x" % min(ord(sign), 0xFFFF) for sign in why[:400])
    form = '{"what": "%s", "pid": %d, "at_ns": %d, "text": "%s", "unkept": %s}\n'
    message = form % (what, os.getpid(), time.monotonic_ns(), text, "true" if unkept else "false")
    try:
        descriptor = os.open(messages, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(descriptor, message.encode("ascii"))
    finally:
        os.close(descriptor)


def _watch_end(messages):
    """Report that a refusal ended a process that called no model itself: a worker's, raised again here."""

    def end():
        errors = sys.modules.get("ravi_otel.errors")
        error = getattr(sys, "last_value", None)
        if errors is None or "ravi_otel._launch.attach" in sys.modules:
            return
        links = 64
        while error is not None and links:
            if isinstance(error, errors.BudgetError):
                _send(messages, "uncaught", unkept=error.reason in ("store_failed", "store_lost"))
                return
            error, links = error.__cause__ or error.__context__, links - 1

    atexit.register(end)


def _attach(plan, wanted, limited, messages):
    def begin(_module=None):
        found = _version()
        try:
            if found == wanted:
                __import__("ravi_otel._launch.attach")
                sys.modules["ravi_otel._launch.attach"].begin(plan)
                return
            why = "%s has %s, the launcher is %s" % (sys.executable, "ravi-otel " + found if found else "no ravi-otel", wanted)
        except Exception as error:  # the program's import must succeed whatever is wrong with us
            why = "ravi-otel could not be started in it (%s: %s)." % (type(error).__name__, error)
        _send(messages, "failed", why)

    doors = _Doors(_here, begin)
    acts = {**dict.fromkeys(_AWAITED + _OVER_HTTP, doors.open), **doors.acts(limited)}
    sys.meta_path.insert(0, _Waiting(acts))
    _watch_end(messages)
    _tell_launcher()
    _send(messages, "attached")
    for name in [name for name in acts if name in sys.modules]:  # a `.pth` file was earlier
        acts[name](sys.modules[name])


def _run_shadowed(here):
    """Run the `sitecustomize` that would have been imported without us."""
    spec = _files.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None and os.path.dirname(os.path.abspath(spec.origin or "")) != here:
        module = _machinery.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _here]
if os.environ.get("RAVI_LAUNCH"):
    _wanted, _limited, _messages = [*os.environ.get("RAVI_LAUNCH_SITE", "").split(":", 2), "", ""][:3]
    try:
        _attach(os.environ["RAVI_LAUNCH"], _wanted, bool(_limited), _messages)
    except Exception as error:
        if sys.stderr is not None:
            sys.stderr.write(
                "ravi-otel: this process is not observed and its limits are not in force: it could not be started in it (%s: %s).\n"
                % (type(error).__name__, error)
            )
_run_shadowed(_here)
