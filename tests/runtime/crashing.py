"""An agent that crashes as often as a test likes."""

import ravi_otel


class Crashing:
    """Crash so often, then give "done"; note the scope of each attempt."""

    def __init__(self, times, error=ValueError, before=lambda: None):
        self.left = times
        self.error = error
        self.before = before
        self.scopes = []

    def __call__(self):
        self.scopes.append(ravi_otel.current_scope())
        self.before()
        if self.left:
            self.left -= 1
            raise self.error("no good")
        return "done"
