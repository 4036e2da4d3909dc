"""Use models of which not all is told: no price, an assumed one, no usage, a total alone, a stream left at its beginning."""

from asks import ask

import ravi_otel

with ravi_otel.run("unknown", user_id="u7", session_id="s-2"):
    with ravi_otel.agent("unpriced"):
        ask("used 50 5", model="nobody-sells-it")
    with ravi_otel.agent("assumed"):
        ask("used 1000 100", model="gpt-4o-mini")
    with ravi_otel.agent("silent"):
        ask("used 40 4")
        ask("untold")
    with ravi_otel.agent("total"):
        ask("total 500")
    with ravi_otel.agent("left"):
        stream = ask("untold", stream=True)
        next(iter(stream))
        stream.close()
    with ravi_otel.agent("counted"):
        for _ in ask("untold", stream=True):
            pass
