"""Call a tool for ever on ten threads, and swallow every exception; prints a line for each call that was let through."""

import threading

import openai  # noqa: F401 - what a program imports is what we wait for

import ravi_otel


@ravi_otel.tool
def search():
    print("searched", flush=True)


def work():
    while True:
        try:
            search()
        except Exception:
            pass


for _ in range(10):
    threading.Thread(target=work).start()
