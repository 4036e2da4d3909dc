"""Take away the guards of the slots' source one by one, and see that the walk through all states finds each out.

A guard is a condition, or one part of it, of an `if`, a `while`, a conditional expression or a filter; it is taken away by
having it always hold, and by having it never hold. They are those of the slots, of who comes first in a ranking, and of how the
tracker waits and tells; what is asked of slots that processes share is left to test_shared_slots.py, as nobody shares any here, and so are
those in ELSEWHERE to the tests that it names.
`python tests/enforcement/spawn_guards.py` prints which instance found what, and fails when something was not found; with a number, of
every so many guards.
"""

import __future__

import ast
import gc
import os
import sys
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from spawn_states import INSTANCES, explore

from ravi_otel._enforcement import sleeper, spawn_tracker

SOURCE = Path(spawn_tracker.__file__)
MODULES = {"Slots": spawn_tracker, "PriorityQueue": sleeper, "SpawnTracker": spawn_tracker}
METHODS = {"Slots": None, "PriorityQueue": ("first",), "SpawnTracker": ("_tell", "_admit")}
"""Whose guards are taken away, by class: those of some methods, or of all."""


ELSEWHERE = {
    "test_spawn_waiting.py": {
        ("arrive", "not self._observe", True),
        ("arrive", "self._observe", False),
        ("withdraw", "waiter.gone", False),
        ("_admit", "waiter.paused", True),
        ("_admit", "waiter.paused", False),
    },
    "test_spawn.py": {
        *(("end_newest", guard, truth) for guard in ("leases", "held is None") for truth in (True, False)),
        *(("leave", "not lease.entered", False), ("leave", "lease.entered", True), ("leave", "lease.among is held.own", True)),
    },
    "test_spawn_holds.py": {
        *(("withdraw", "waiter.enters", truth) for truth in (True, False)),
        ("withdraw", "waiter.lease is not None", False),
    },
    "test_spawn_signals.py and runtime/test_spawn_ahead.py": {
        *(("_admit", "waits is None", True), ("_admit", "ahead is None", True), ("_admit", "ahead is not None", False)),
        *(("_admit", "ahead.is_past()", truth) for truth in (True, False)),
    },
    "test_shared_slots.py": {("_record_event", "outcome == 'denied'", truth) for truth in (True, False)},
    "nowhere, as nothing differs: an empty line gives nobody a slot": {("_end", "self._line.items", True)},
    "nowhere, as nothing differs: who was served has a lease": {("_admit", "lease is None", False)},
}
"""Guards that this walk cannot find, as it neither observes, keeps slots for agents to come, nor has other limits: what finds them."""

_LEFT = frozenset().union(*ELSEWHERE.values())


def parsed(name):
    """Give the tree of the module in which a class is."""
    return ast.parse(Path(MODULES[name].__file__).read_text(encoding="utf-8"))


def classes(tree):
    """Give the classes of the source that are looked through, by name."""
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in METHODS}


def functions(tree, name):
    """Give what is looked through of a class."""
    methods = [node for node in classes(tree)[name].body if isinstance(node, ast.FunctionDef)]
    return [node for node in methods if METHODS[name] is None or node.name in METHODS[name]]


def conditions(tree, name):
    """Give each condition and each part of one, with the method that it is in."""
    for method, node in ((function.name, node) for function in functions(tree, name) for node in ast.walk(function)):
        tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
        if isinstance(node, ast.comprehension):
            tests = list(node.ifs)
        if isinstance(node, ast.Return | ast.Assign) and isinstance(node.value, ast.BoolOp | ast.Compare):
            tests = [node.value]
        for test in tests:
            for part in parts(test):
                yield method, part


def parts(test):
    if "self._shared" not in ast.unparse(test):
        yield test
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from parts(value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from parts(test.operand)


def guards(name="Slots"):
    """List the guards of a class: line, text, and the truth it is nailed to."""
    return [(node.lineno, ast.unparse(node), truth) for node, truth in nailed(parsed(name), name)]


def nailed(tree, name):
    """List the guards of a class, those left to other tests apart: the node, and the truth it is nailed to."""
    both = [(method, node, truth) for method, node in conditions(tree, name) for truth in (True, False)]
    return [(node, truth) for method, node, truth in both if (method, ast.unparse(node), truth) not in _LEFT]


def without(name, number):
    """Give the tree of the source in which one guard of a class, by its number, always has one truth."""
    tree = parsed(name)
    node, truth = nailed(tree, name)[number]

    class Nail(ast.NodeTransformer):
        def visit(self, at):
            return ast.copy_location(self._nailed(at), at) if at is node else self.generic_visit(at)

        @staticmethod
        def _nailed(at):
            names = [one for one in ast.walk(at) if isinstance(one, ast.NamedExpr)]
            if not names:
                return ast.Constant(truth)
            # What the condition names on its way is still named.
            return ast.Subscript(ast.Tuple([at, ast.Constant(truth)], ast.Load()), ast.Constant(1), ast.Load())

    return ast.fix_missing_locations(Nail().visit(tree))


def tracker_without(name, number):
    """Give a SpawnTracker that misses one guard of a class; nothing else in the process is touched."""
    space = dict(vars(MODULES[name]))  # leases and who waits are the tracker's own all the same
    only = ast.Module([classes(without(name, number))[name]], [])
    exec(compile(only, "without_a_guard", "exec", flags=__future__.annotations.compiler_flag), space)
    mutant = types.SimpleNamespace(**space)
    if name == "SpawnTracker":
        return mutant.SpawnTracker

    class Tracker(spawn_tracker.SpawnTracker):
        def __init__(self, budget=None, *, observe=False, run_id=None, clock=lambda: 0, **rest):
            super().__init__(budget, observe=observe, run_id=run_id, clock=clock, **rest)
            if name == "Slots":
                self._slots = mutant.Slots(self, self.budget, run_id, clock, observe=observe)
            else:
                self._slots._active, self._slots._line = mutant.PriorityQueue(), mutant.PriorityQueue()

    return Tracker


def found_out(name, number, last=None):
    """Name the instance whose walk fails without a guard of a class, and how; None where no walk does.

    The one by that name, which found the guard before, is tried first.
    """
    without_it = tracker_without(name, number)
    for instance in sorted(INSTANCES, key=lambda each: each.name != last):
        try:
            explore(instance, without_it)
        except Exception as error:
            return instance.name, str(error)
    return None


def table(every=1):
    """Give a row for each guard: line, text, what was put in its place, and what found it out."""
    found = None
    numbered = [(name, number, guard) for name in METHODS for number, guard in enumerate(guards(name))]
    for name, number, (at, text, truth) in numbered[::every]:
        found = found_out(name, number, found and found[0])
        yield f"{name} {at}", text, truth, found
        gc.collect()


def main():
    os.environ["RAVI_RAISE_BUGS"] = "1"
    sys.unraisablehook = lambda _: None  # callers that a broken tracker leaves in line are collected
    gc.disable()  # walks leave much garbage, and it is collected after each guard
    began, rows, missed = time.process_time(), 0, 0
    print("| line | guard | always | found out by |\n|---|---|---|---|")
    for at, text, truth, found in table(int((sys.argv[1:] or ["1"])[0])):
        rows, missed = rows + 1, missed + (found is None)
        print(f"| {at} | `{text}` | {truth} | {found[0] if found else '**nobody**'} |", flush=True)
    print(f"\n{rows - missed} of {rows} were found out, in {time.process_time() - began:.0f} s")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
