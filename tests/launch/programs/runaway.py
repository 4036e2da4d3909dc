"""Call for ever on several threads, and swallow every exception."""

import sys
import threading

import openai

client = openai.OpenAI(max_retries=0)


def work():
    while True:
        try:
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], max_tokens=int(sys.argv[2]))
        except Exception:
            pass


threads = [threading.Thread(target=work) for _ in range(int(sys.argv[1]))]
for thread in threads:
    thread.start()
