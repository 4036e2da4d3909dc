"""Call a tool for ever, and swallow every exception; prints a line for each call that was let through."""

import openai  # noqa: F401 - what a program imports is what we wait for

import ravi_otel


@ravi_otel.tool
def search():
    print("searched", flush=True)


while True:
    try:
        search()
    except Exception:
        pass
