"""Ask again and again, whatever is refused."""

import contextlib

from asks import ask

import ravi_otel

with ravi_otel.run("loop", user_id="u42", tenant_id="globex", tags={"team": "research"}):
    with contextlib.suppress(ravi_otel.BudgetExhaustedError), ravi_otel.agent("turner", budget=ravi_otel.ExecutionBudget(max_turns=2)):
        for _ in range(4):
            ask("used 100 10")
    with ravi_otel.agent("spender"):
        for _ in range(9):
            with contextlib.suppress(ravi_otel.BudgetExhaustedError):
                ask("used 100 10", max_tokens=100)
