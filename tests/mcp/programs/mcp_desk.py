"""A program that knows nothing of us: it calls a tool eight times."""

import asyncio
import sys
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main():
    notes = StdioServerParameters(command=sys.executable, args=[str(Path(__file__).parent / "notes.py"), "stdio"], env=None)
    async with stdio_client(notes) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        for number in range(8):
            result = await session.call_tool("search", {"query": f"q{number}"})
            print(result.content[0].text, flush=True)


asyncio.run(main())
