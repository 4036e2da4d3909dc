"""Call from eight threads of a pool."""

from concurrent.futures import ThreadPoolExecutor

import openai

client = openai.OpenAI(max_retries=0)


def ask(number):
    answer = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": str(number)}])
    return f"{number}: {answer.choices[0].message.content}"


with ThreadPoolExecutor(8) as pool:
    print("\n".join(pool.map(ask, range(8))))
