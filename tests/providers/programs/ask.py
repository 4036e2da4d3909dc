"""Ask a model so many times through one library, as any program would: `ask.py CASE TIMES`."""

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from provider_libraries import CASES

chosen = next(each for each in CASES if each.name == sys.argv[1])
client = chosen.make(os.environ["OPENAI_BASE_URL"].removesuffix("/v1"))


async def ask_all():
    for _ in range(int(sys.argv[2])):
        print(*await chosen.ask(client))


if chosen.colour == "async":
    asyncio.run(ask_all())
else:
    for _ in range(int(sys.argv[2])):
        print(*chosen.ask(client))
