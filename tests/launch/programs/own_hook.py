"""Set an excepthook of its own, call a tool, then fail."""

import sys

import ravi_otel


def hook(kind, error, trace):
    print(f"my own hook: {kind.__name__}")


@ravi_otel.tool
def work():
    print("worked")


sys.excepthook = hook
work()
if len(sys.argv) > 1:
    work()
raise KeyError("mine")
