"""Ask until a limit ends the program."""

from asks import ask

import ravi_otel

with ravi_otel.agent("spender"):
    while True:
        ask("used 100 10")
