"""Charge in a process that has slices of a limit, and in children that are forked from it; print what each of them had out."""

import json
import os
import warnings

import ravi_otel
from ravi_otel._runtime.state import STATE

warnings.filterwarnings("ignore", message="This process", category=DeprecationWarning)  # of forks beside threads
PARENTS, CHILDS, CHILDREN = 60, 40, 2


def out():
    return STATE.engine.ledger.out


def charge(times):
    with ravi_otel.run("r", tenant_id="acme", limits=["tenant.charge.rows=1000000"]):
        for _ in range(times):
            ravi_otel.current_scope().charge("rows", 1)


ravi_otel.instrument()
charge(PARENTS)
told = {"parent": out(), "began": [], "had": []}
reading, writing = os.pipe()
children = []
for _ in range(CHILDREN):
    child = os.fork()
    if not child:
        began = out()
        charge(CHILDS)
        os.write(writing, f"{began} {out()}\n".encode())
        ravi_otel.uninstrument()
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * CHILDREN
for line in os.read(reading, 4096).decode().splitlines():
    began, had = line.split()
    told["began"].append(int(began))
    told["had"].append(int(had))
charge(PARENTS)
ravi_otel.uninstrument()
print(json.dumps(told))
