"""Take away the guards of the slots' source one by one, and see that the walk through all states finds each out.

A guard is a condition, or one part of it, of an `if`, a `while`, a conditional expression or a filter; it is taken away by
having it always hold, and by having it never hold. They are those of the slots, of who comes first in a ranking, and of how the
tracker waits and tells; what is asked of slots that processes share is left to test_shared_slots.py, as nobody shares any here.
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

from ravi_otel._enforcement.spawn import queue, slots, tracker

SOURCE = Path(slots.__file__)
FUNCTIONS = {slots: ("Slots",), queue: ("first",), tracker: ("_tell", "_wait", "_served", "admit", "resumption")}
"""Whose guards are taken away, by module: of classes and of functions."""


def functions(tree, names):
    """Give what is looked through in a module."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names]


def conditions(tree, names):
    """Give each condition and each part of one, with its place: the node, and where it hangs."""
    for node in (node for function in functions(tree, names) for node in ast.walk(function)):
        tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
        if isinstance(node, ast.comprehension):
            tests = list(node.ifs)
        if isinstance(node, ast.Return | ast.Assign) and isinstance(node.value, ast.BoolOp | ast.Compare):
            tests = [node.value]
        for test in tests:
            yield from parts(test)


def parts(test):
    if "self._shared" not in ast.unparse(test):
        yield test
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from parts(value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from parts(test.operand)


def guards(module=slots):
    """List the guards of a module: line, text, and the truth it is nailed to."""
    nodes = conditions(ast.parse(Path(module.__file__).read_text(encoding="utf-8")), FUNCTIONS[module])
    return [(node.lineno, ast.unparse(node), truth) for node in nodes for truth in (True, False)]


def without(module, number):
    """Give the tree of a module's source in which one guard, by its number, always has one truth."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    node, truth = [(node, truth) for node in conditions(tree, FUNCTIONS[module]) for truth in (True, False)][number]

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


def tracker_without(module, number):
    """Give a SpawnTracker that misses one guard; nothing else in the process is touched."""
    names = {slots: "Slots", queue: "PriorityQueue", tracker: "SpawnTracker"}
    only = [node for node in without(module, number).body if isinstance(node, ast.ClassDef) and node.name == names[module]]
    space = dict(vars(module))  # leases and who waits are the tracker's own all the same
    exec(compile(ast.Module(only, []), "without_a_guard", "exec", flags=__future__.annotations.compiler_flag), space)
    mutant = types.SimpleNamespace(**space)
    if module is tracker:
        return mutant.SpawnTracker

    class Tracker(tracker.SpawnTracker):
        def __init__(self, budget=None, *, observe=False, run_id=None, clock=lambda: 0, **rest):
            super().__init__(budget, observe=observe, run_id=run_id, clock=clock, **rest)
            if module is slots:
                self._slots = mutant.Slots(self, self.budget, run_id, clock, observe=observe)
            else:
                self._slots._active, self._slots._line = mutant.PriorityQueue(), mutant.PriorityQueue()

    return Tracker


def found_out(module, number, last=None):
    """Name the instance whose walk fails without a guard, and how; None where no walk does.

    The one by that name, which found the guard before, is tried first.
    """
    tracker = tracker_without(module, number)
    for instance in sorted(INSTANCES, key=lambda each: each.name != last):
        try:
            explore(instance, tracker)
        except Exception as error:
            return instance.name, str(error)
    return None


def table(every=1):
    """Give a row for each guard: line, text, what was put in its place, and what found it out."""
    found = None
    numbered = [(module, number, guard) for module in FUNCTIONS for number, guard in enumerate(guards(module))]
    for module, number, (at, text, truth) in numbered[::every]:
        found = found_out(module, number, found and found[0])
        yield f"{Path(module.__file__).stem} {at}", text, truth, found
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
