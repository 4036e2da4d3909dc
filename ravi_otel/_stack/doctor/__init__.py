"""Look at what telemetry and limits need, from packages to the stack's stores, and say what is not well and what to do.

One file a group of checks. Each check is a plain function that gives findings, within the time that is left; none changes anything.
"""
