"""Put wrappers into packages of others: which of them are there, how an attribute is wrapped and given back, and who forks workers."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final, Protocol, cast

import wrapt

from ravi_otel.hooks._listeners import Guarded

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""What runs instead: the wrapped method, its instance, positional and keyword arguments."""

_MOST_NODES: Final = 256
_EMPTY: Final = CellType()
_FUNCTIONS: Final = (FunctionType, MethodType, partial, wrapt.FunctionWrapper)
_NOT_GIVEN: Final = object()
_RUNS_LATER: Final = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class _Place:
    """One method of a class, what stands for it, and the wrappers that run there: those of the first to come are the innermost.

    Whoever stops wrapping a method leaves the others where they are; with the last of them the original is back.
    """

    __slots__ = ("_active", "_order", "name", "original", "owner", "replacement", "wrapper")

    def __init__(self, owner: type, name: str, original: Any) -> None:
        self.owner = owner
        self.name = name
        self.original = original
        self._order: dict[Wraps, Wrapper] = {}
        self._active: set[Wraps] = set()
        self.wrapper: Wrapper = _through
        self.replacement = _standing_for(self)

    def over(self, original: Any) -> _Place:
        """Return another one with the same wrappers, for a method that somebody has put in the place of this one."""
        another = _Place(self.owner, self.name, original)
        for who, wrapper in self._order.items():
            if who in self._active:
                another.add(who, wrapper)
        return another

    def add(self, who: Wraps, wrapper: Wrapper) -> None:
        """Have a wrapper run; one that did before is the same as then, in the same place among the others."""
        self._order.setdefault(who, wrapper)
        self._active.add(who)
        self._compose()

    def remove(self, who: Wraps) -> None:
        """Have a wrapper run no more; where it was the last, the original is back, unless somebody has wrapped over us."""
        self._active.discard(who)
        self._compose()
        if not self._active and self.owner.__dict__.get(self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)

    def _compose(self) -> None:
        run = [wrapper for who, wrapper in self._order.items() if who in self._active]
        self.wrapper = _through if not run else run[0] if len(run) == 1 else partial(_nested, tuple(run))

    def __call__(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the method through the wrappers of this moment."""
        return self.wrapper(wrapped, instance, args, kwargs)


def _through(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return wrapped(*args, **kwargs)


def _nested(
    wrappers: tuple[Wrapper, ...], wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a method through several wrappers, the last of them first."""
    inner = wrapped
    for wrapper in wrappers[:-1]:
        inner = _inside(wrapper, inner, instance)
    return wrappers[-1](inner, instance, args, kwargs)


def _inside(wrapper: Wrapper, wrapped: Callable[..., Any], instance: Any) -> Callable[..., Any]:
    @functools.wraps(wrapped)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return wrapper(wrapped, instance, args, kwargs)

    return inner


_PLACES: Final[dict[tuple[type, str], _Place]] = {}
"""The one registry of what is wrapped in this process, also after it was put back: somebody who wrapped over us still holds it."""


class _Bound(wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]  # generic only in newer ones, and only for checkers
    """A wrapped method that was looked up: copied and pickled as the method itself would be, by who has it and its name."""

    def _looked_up(self) -> tuple[Any, str]:
        wrapper: _Wrapper = self._self_parent
        owner, name = wrapper.place()
        instance: Any = getattr(cast("Any", self).__wrapped__, "__self__", None)
        return (owner if instance is None else instance), name

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        holder, name = self._looked_up()
        return getattr(copy.deepcopy(holder, memo), name)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return getattr, self._looked_up()


class _Wrapper(wrapt.FunctionWrapper):  # type: ignore[type-arg]  # generic only in newer ones, and only for checkers
    """A wrapped method as its class holds it; a function is never copied, and pickled by its name."""

    __bound_function_wrapper__ = _Bound

    def __init__(self, wrapped: Any, wrapper: Wrapper, owner: type, name: str) -> None:
        cast("Any", super()).__init__(wrapped, wrapper)
        self._self_place = (owner, name)

    def place(self) -> tuple[type, str]:
        """Return the class that holds it, and its name there."""
        return self._self_place

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return self

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return getattr, self.place()


class Wraps:
    """What one of us wraps. Several may wrap the same method, and come and go in any order."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[tuple[type, str], _Place] = {}

    def wrap(self, owner: type, name: str, wrapper: Wrapper) -> None:
        """Replace the method `name` that `owner` itself defines; KeyError when it defines none.

        Wrapped again, with the same wrapper as before, a method gets the same replacement, and none over one that is still beneath.
        """
        current = owner.__dict__[name]
        place = _PLACES.get((owner, name))
        if place is None:
            place = _PLACES[owner, name] = _Place(owner, name, current)
        beneath = current is not place.replacement and current is not place.original
        if beneath and not _lies_beneath(place.replacement, current, owner):
            place, beneath = place.over(current), False
            _PLACES[owner, name] = place
        self._places[owner, name] = place
        place.add(self, wrapper)
        if not beneath:
            setattr(owner, name, place.replacement)

    def restore(self) -> None:
        """Put back every method that nobody else wraps; where somebody wrapped over us, ours stays beneath and does nothing."""
        for place in self._places.values():
            _PLACES[place.owner, place.name].remove(self)


def _standing_for(place: _Place) -> Any:
    """Return what stands for a method.

    For a plain function it is one too, which costs a third of wrapt's to call. What is awaited or generates has to be seen to do so.
    """
    current = place.original
    if type(current) is not FunctionType or current.__code__.co_flags & _RUNS_LATER:  # a wrapper of wrapt's says that it is an instance
        return _Wrapper(current, place, place.owner, place.name)

    @functools.wraps(current)
    def method(instance: Any = _NOT_GIVEN, /, *args: Any, **kwargs: Any) -> Any:
        if instance is _NOT_GIVEN:  # by its keyword, or not at all, which is the method's own TypeError
            return current(**kwargs)
        bound = partial(current, None) if instance is None else MethodType(current, instance)
        return place.wrapper(bound, instance, args, kwargs)

    return method


def _lies_beneath(ours: Any, current: Any, owner: type) -> bool:
    """Whether what stands in a class leads to a replacement of ours: by what it says that it wraps, or by what functions it can call."""
    found, nodes = [current], 0
    while found and nodes < _MOST_NODES:
        at, nodes = found.pop(0), nodes + 1
        if at is ours:
            return True
        found += _callable_from(at, owner)
    return False


def _callable_from(at: Any, owner: type) -> list[Any]:
    """Return what a wrapper says that it wraps; of a plain function, which says nothing, the functions that it has at hand by any name."""
    with contextlib.suppress(Exception):  # somebody's own object
        if isinstance(at, MethodType | partial):
            return [at.__func__ if isinstance(at, MethodType) else at.func]
        if hasattr(at, "__wrapped__"):
            return [at.__wrapped__]
        if type(at) is FunctionType:
            cells = [cell.cell_contents for cell in at.__closure__ or () if cell != _EMPTY]
            named = [place[name] for name in at.__code__.co_names for place in (at.__globals__, vars(owner)) if name in place]
            defaults = (*(at.__defaults__ or ()), *(at.__kwdefaults__ or {}).values())
            return [each for each in (*cells, *defaults, *named) if isinstance(each, _FUNCTIONS)]
    return []


# -- what goes around a method, whether it blocks or is awaited -----------------------------------------------------------

Block = AbstractContextManager[Callable[[Any], object]]
"""Goes around one call; entered, it gives what takes the result."""


def ignore(_result: object) -> None:
    """Take a result that says nothing."""


def wrapper_of(block_of: Callable[[Any, tuple[Any, ...], dict[str, Any]], Block | None], *, awaits: bool) -> Wrapper:
    """Return a wrapper that has a method run inside a block; where `block_of` gives none for an instance and arguments, as it is.

    The block of a method that `awaits` is entered once the method's coroutine runs.
    """

    def wrapper(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        block = block_of(instance, args, kwargs)
        if block is None or not awaits:
            return called_in(block, wrapped, args, kwargs)
        return named_like(awaited_in(block, wrapped, args, kwargs), wrapped)

    return wrapper


def called_in(block: Block | None, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a method gives that is called inside the block, if there is one."""
    if block is None:
        return method(*args, **kwargs)
    with block as done:
        result = method(*args, **kwargs)
        done(result)
    return result


async def awaited_in(block: Block | None, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a method gives that is awaited inside the block, if there is one."""
    if block is None:
        return await method(*args, **kwargs)
    with block as done:
        result = await method(*args, **kwargs)
        done(result)
    return result


def named_like(coroutine: Any, wrapped: Callable[..., Any]) -> Any:
    """Return a coroutine under the name of the method it stands for, which is what "never awaited" names."""
    with contextlib.suppress(AttributeError, TypeError):  # what a program has put in its place may have none
        coroutine.__name__, coroutine.__qualname__ = wrapped.__name__, wrapped.__qualname__
    return coroutine


# -- which packages are there -------------------------------------------------------------------------------------------

_log = logging.getLogger("ravi_otel")
_CLAUSE: Final = re.compile(r"(>=|<=|==|!=|~=|>|<)\s*([0-9][0-9.]*)")

OnImport = Callable[[ModuleType], object]
"""What is called with a module that was imported just now."""


class Imports:
    """Call back each time a module is imported, a second copy of it and a reload too; among Python's finders while anybody asks."""

    def __init__(self) -> None:
        self._watched: dict[str, tuple[OnImport, ...]] = {}
        self._finding = threading.local()
        self._begun: tuple[tuple[ModuleType, OnImport], ...] = ()

    def watch(self, name: str, act: OnImport) -> None:
        """Call `act` with the module of that name after every import of it from now on; asked for again it changes nothing."""
        known = self._watched.get(name, ())
        if act not in known:
            self._watched[name] = (*known, act)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def watch_begun(self, module: ModuleType, act: OnImport) -> None:
        """Call `act` once a module is whole whose import began before anybody watched: at the next import after that."""
        if (module, act) not in self._begun:
            self._begun = (*self._begun, (module, act))

    def _finish_begun(self) -> None:
        begun, self._begun = self._begun, ()
        for module, act in begun:
            if is_partial(module):
                self.watch_begun(module, act)
            else:
                with Guarded("import"):
                    act(module)

    def forget(self, name: str, act: OnImport) -> None:
        """Call `act` no more for that name."""
        self._begun = tuple(each for each in self._begun if each[1] != act)
        rest = tuple(one for one in self._watched.pop(name, ()) if one != act)
        if rest:
            self._watched[name] = rest
        elif not self._watched:
            with contextlib.suppress(ValueError):  # somebody has cleared the list
                sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module that is watched as the other finders do, and have it loaded with what is called afterwards."""
        if self._begun:
            self._finish_begun()
        if name not in self._watched:
            return None
        finding: set[str] = self._finding.__dict__.setdefault("names", set())
        if name in finding:  # asked by a finder that asks the others, as we do
            return None
        finding.add(name)
        try:
            for finder in tuple(sys.meta_path):
                find: Any = None if finder is self else getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None if find is None else find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = cast("Loader", _Loading(spec.loader, self))
                    return spec
        finally:
            finding.discard(name)
        return None

    def loaded(self, module: ModuleType) -> None:
        """Call whoever watches for this module; a bug of theirs never breaks the import."""
        for act in self._watched.get(module.__name__, ()):
            with Guarded("import"):  # the program's import succeeds whatever is wrong with us
                act(module)


def is_partial(module: ModuleType) -> bool:
    """Whether the import of a module is still under way."""
    return bool(getattr(module.__spec__, "_initializing", False))


class _Loading:
    """Load a module with its own loader, which it keeps, and say so."""

    def __init__(self, loader: Any, imports: Imports) -> None:
        self._loader = loader
        self._imports = imports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Do as the module's own loader."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, with nothing of ours left on it, and then what watches for it."""
        for holder, name in ((module, "__loader__"), (module.__spec__, "loader")):
            if getattr(holder, name, None) is self:
                setattr(holder, name, self._loader)
        self._loader.exec_module(module)
        self._imports.loaded(module)


IMPORTS: Final = Imports()
"""The one of the process."""


class Installed(Protocol):
    """The wrappers of one module of a package, for as long as the process has it.

    One object for ever: somebody who wrapped over us keeps our wrappers beneath, and they must work again when we are back.
    """

    def install(self) -> None:
        """Put them in place; AttributeError or KeyError where the module has not what they stand for."""
        ...

    def remove(self) -> None:
        """Fall silent, and put the identical objects back."""
        ...


class Package:
    """Wrap one package when, and only when, the program imports it; again when it imports it anew.

    `module` is what holds its classes, `make` gives the wrappers of one module object, `unusable` says what becomes of a version
    that cannot be wrapped, with `%s` where the log names what it misses.
    """

    def __init__(self, module: str, make: Callable[[ModuleType], Installed], unusable: str) -> None:
        self.module = module
        self._make = make
        self._unusable = unusable
        self._known: list[tuple[ModuleType, Installed]] = []
        self._wrapped: list[ModuleType] = []

    def install(self) -> None:
        """Wrap now, and whenever the program imports it: every copy of the module that is imported by and by."""
        IMPORTS.watch(self.module, self._wrap)
        if self.module in sys.modules:
            module = importlib.import_module(self.module)  # waits for another thread that is importing it right now
            if not self.holds(module):
                self._wrap(module, partial=is_partial(module))

    def remove(self) -> None:
        """Put back the identical methods of every copy."""
        IMPORTS.forget(self.module, self._wrap)
        wrapped, self._wrapped = self._wrapped, []
        for module, installed in self._known:
            if any(module is one for one in wrapped):
                installed.remove()

    def holds(self, module: ModuleType | None) -> bool:
        """Whether this very module is wrapped now."""
        return any(wrapped is module for wrapped in self._wrapped)

    def _wrap(self, module: ModuleType, *, partial: bool = False) -> None:
        """Wrap what the module has now: the classes of one that was reloaded are others. One that is `partial` may have them later."""
        installed = next((one for known, one in self._known if known is module), None)
        if installed is None:
            installed = self._make(module)
            self._known.append((module, installed))
        try:
            installed.install()
        except (AttributeError, KeyError) as error:
            installed.remove()
            if partial:
                IMPORTS.watch_begun(module, self._wrap)
            else:
                _log.error(self._unusable, repr(str(error)))
            return
        if not self.holds(module):
            self._wrapped.append(module)


def is_within(version: str, versions: str) -> bool:
    """Whether a version is one of `>=1.40,<2`; what cannot be read as figures counts as within."""
    found = figures(version)
    return all(_holds(sign, found, figures(bound)) for sign, bound in _CLAUSE.findall(versions)) if found else True


def _holds(sign: str, found: tuple[int, ...], bound: tuple[int, ...]) -> bool:
    width = max(len(found), len(bound))
    one, other = (each + (0,) * (width - len(each)) for each in (found, bound))
    return {
        ">=": one >= other,
        "<=": one <= other,
        ">": one > other,
        "<": one < other,
        "==": one == other,
        "!=": one != other,
        "~=": one >= other and found[: len(bound) - 1] == bound[:-1],
    }[sign]


def figures(version: str) -> tuple[int, ...]:
    """Read the figures that a version begins with."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9}){0,7}", version)
    return tuple(map(int, found[0].split("."))) if found else ()


_FIRST: Final = 100
"""Before the finalisers of others, which may take away what ours needs."""


class Leaving:
    """What is done when a worker ends; nothing while nobody is instrumented."""

    def __init__(self) -> None:
        self.act: Callable[[], object] | None = None

    def __call__(self, *_: object, **__: object) -> None:
        """Do it; never raises."""
        with Guarded("leave"):  # a worker ends as it would without us
            if self.act is not None:
                self.act()


LEAVING: Final = Leaving()


class _Finalisers:
    """Be among the finalisers of each process that `multiprocessing` starts: whatever was there before its start is not run at its end."""

    def __init__(self, util: Any) -> None:
        self._util = util
        self._registered = False
        self._pid = 0

    def install(self) -> None:
        """Be told of each process that is started from here on, and of the end of this one, if it is such a process."""
        if not self._registered:
            self._registered = True
            self._util.register_after_fork(self, _Finalisers.join)
        if self._util.process.parent_process() is not None:
            self.join()

    def join(self) -> None:
        """Be run at the end of this process."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._util.Finalize(None, LEAVING, exitpriority=_FIRST)

    def remove(self) -> None:
        """Leave it to `LEAVING`, which does nothing now: nobody is taken off that list again."""


class _Signals:
    """Hear from Celery that a worker process ends."""

    def __init__(self, signals: ModuleType) -> None:
        self._signal: Any = signals.worker_process_shutdown

    def install(self) -> None:
        """Be told of it."""
        self._signal.connect(LEAVING, weak=False, dispatch_uid=id(LEAVING))

    def remove(self) -> None:
        """Be told no more."""
        self._signal.disconnect(LEAVING, dispatch_uid=id(LEAVING))


def _package(module: str, make: Callable[[Any], _Finalisers | _Signals]) -> Package:
    return Package(module, make, f"ravi-otel: workers of {module.partition('.')[0]} end without telling us: %s is missing.")


WORKERS: Final = (_package("multiprocessing.util", _Finalisers), _package("celery.signals", _Signals))
