"""Call a model from 100 greenlets at once under one limit; argv: when gevent patches ("before", "after", "no threads"), and the limit."""

import collections
import sys

from gevent import monkey

order, limit, url = sys.argv[1:]
if order == "before":
    monkey.patch_all()
if order == "no threads":
    monkey.patch_all(thread=False)

import ravi_otel  # noqa: E402 - gevent patched before

ravi_otel.instrument()

if order == "after":
    monkey.patch_all(ssl=False)

import gevent  # noqa: E402 - the same
import openai  # noqa: E402 - the same

client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
came_of_it = collections.Counter()


def ask():
    try:
        client.chat.completions.create(model="gpt-4o-mini", max_tokens=50, messages=[{"role": "user", "content": "x"}])
        came_of_it["answered"] += 1
    except ravi_otel.BudgetExhaustedError as refusal:
        came_of_it[refusal.reason] += 1


with ravi_otel.run("all", limits=[limit]):
    gevent.joinall([gevent.spawn(ask) for _ in range(100)], raise_error=True)
print(sum(came_of_it.values()), came_of_it["answered"], came_of_it["contended"])
