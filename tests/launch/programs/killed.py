"""Fork a worker that makes a call and is killed in the middle of it; then ask for the same again."""

import os
import signal
import sys
import time

import openai


def ask(client):
    client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], max_tokens=60)


worker = os.fork()
if not worker:
    ask(openai.OpenAI(max_retries=0, base_url=sys.argv[2]))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.kill(worker, signal.SIGKILL)
os.waitpid(worker, 0)
began = time.monotonic()
try:
    ask(openai.OpenAI(max_retries=0))
    print("sent")
except Exception as error:
    print(type(error).__name__)
print(f"{time.monotonic() - began:.1f}", file=sys.stderr)
