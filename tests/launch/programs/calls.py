"""Make as many calls as told, one after the other, and print each answer."""

import sys

import openai

client = openai.OpenAI(max_retries=0)
for _ in range(int(sys.argv[1])):
    answer = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
    print(answer.choices[0].message.content)
