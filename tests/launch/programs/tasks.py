"""Call from eight tasks, one of them a stream."""

import asyncio

import openai


async def ask(client, number):
    answer = await client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": str(number)}])
    return f"{number}: {answer.choices[0].message.content}"


async def stream(client):
    chunks = await client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])


async def main():
    client = openai.AsyncOpenAI(max_retries=0)
    print("\n".join(await asyncio.gather(*(ask(client, number) for number in range(7)), stream(client))))


asyncio.run(main())
