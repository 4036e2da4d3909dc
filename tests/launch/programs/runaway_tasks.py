"""Call for ever in several tasks, and swallow every exception."""

import asyncio
import sys

import openai


async def work(client):
    while True:
        try:
            await client.chat.completions.create(
                model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], max_tokens=int(sys.argv[2])
            )
        except Exception:
            pass


async def main():
    client = openai.AsyncOpenAI(max_retries=0)
    await asyncio.gather(*(work(client) for _ in range(int(sys.argv[1]))))


asyncio.run(main())
