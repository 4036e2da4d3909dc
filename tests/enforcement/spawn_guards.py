"""Take away the guards of the slots' source one by one, and see that the walk through all states finds each out.

A guard is a condition, or one part of it, of an `if`, a `while`, a conditional expression or a filter; it is taken away by
having it always hold, and by having it never hold. `python tests/enforcement/spawn_guards.py` prints which instance found
what, and fails when something was not found; with a number, of every so many guards.
"""

import ast
import gc
import os
import sys
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from spawn_states import INSTANCES, explore

from ravi_otel.enforcement import roster, spawn

SOURCE = Path(roster.__file__)


def conditions(tree):
    """Give each condition and each part of one, with its place: the node, and where it hangs."""
    for node in ast.walk(tree):
        tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
        if isinstance(node, ast.comprehension):
            tests = list(node.ifs)
        if isinstance(node, ast.Return | ast.Assign) and isinstance(node.value, ast.BoolOp | ast.Compare):
            tests = [node.value]
        for test in tests:
            yield from parts(test)


def parts(test):
    yield test
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from parts(value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from parts(test.operand)


def guards(source):
    """List the guards: line, text, and the truth it is nailed to."""
    return [(node.lineno, ast.unparse(node), truth) for node in conditions(ast.parse(source)) for truth in (True, False)]


def without(source, number):
    """Give the tree of the source in which one guard, by its number, always has one truth."""
    tree = ast.parse(source)
    node, truth = [(node, truth) for node in conditions(tree) for truth in (True, False)][number]

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


def tracker_without(number):
    """Give a SpawnTracker whose roster misses one guard; nothing else in the process is touched."""
    mutant = types.ModuleType("roster_without_a_guard")
    exec(compile(without(SOURCE.read_text(encoding="utf-8"), number), "roster_without_a_guard", "exec"), mutant.__dict__)

    class Tracker(spawn.SpawnTracker):
        def __init__(self, budget=None, *, observe=False, run_id=None, clock=lambda: 0, **rest):
            super().__init__(budget, observe=observe, run_id=run_id, clock=clock, **rest)
            self._roster = mutant.Roster(self, self.budget, run_id, clock, observe=observe)

    return Tracker


def found_out(number, last=None):
    """Name the instance whose walk fails without a guard, and how; None where no walk does.

    The one by that name, which found the guard before, is tried first.
    """
    tracker = tracker_without(number)
    for instance in sorted(INSTANCES, key=lambda each: each.name != last):
        try:
            explore(instance, tracker)
        except Exception as error:
            return instance.name, str(error)
    return None


def table(every=1):
    """Give a row for each guard: line, text, what was put in its place, and what found it out."""
    found = None
    for number, (line, text, truth) in list(enumerate(guards(SOURCE.read_text(encoding="utf-8"))))[::every]:
        found = found_out(number, found and found[0])
        yield line, text, truth, found
        gc.collect()


def main():
    os.environ["RAVI_RAISE_BUGS"] = "1"
    sys.unraisablehook = lambda _: None  # callers that a broken roster leaves in line are collected
    gc.disable()  # walks leave much garbage, and it is collected after each guard
    began, rows, missed = time.process_time(), 0, 0
    print("| line | guard | always | found out by |\n|---:|---|---|---|")
    for line, text, truth, found in table(int((sys.argv[1:] or ["1"])[0])):
        rows, missed = rows + 1, missed + (found is None)
        print(f"| {line} | `{text}` | {truth} | {found[0] if found else '**nobody**'} |", flush=True)
    print(f"\n{rows - missed} of {rows} were found out, in {time.process_time() - began:.0f} s")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
