"""Print every signal that comes, until SIGTERM."""

import signal
import sys

import ravi_otel  # noqa: F401 - what a program imports is what we wait for


WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
print("ready", flush=True)
while True:
    number = signal.sigwait(WATCHED)
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(7)
