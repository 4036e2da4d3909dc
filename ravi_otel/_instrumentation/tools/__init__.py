"""Make tools of a program's functions where they are kept: in a module, a class, a mapping or a list.

`places` finds them, `choosing` leaves out some by name, `placing` puts ours there and theirs back, `gating` has ours pass a gate.
"""

from ravi_otel._instrumentation.tools.gating import Gating
from ravi_otel._instrumentation.tools.placing import InstrumentedTools, instrument_all, instrument_tools, remove_tools, targets_of

__all__ = ["Gating", "InstrumentedTools", "instrument_all", "instrument_tools", "remove_tools", "targets_of"]
