"""Set an excepthook of its own, then fail."""

import sys

import openai


def hook(kind, error, trace):
    print(f"my own hook: {kind.__name__}")


sys.excepthook = hook
openai.OpenAI(max_retries=0).chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
if len(sys.argv) > 1:
    openai.OpenAI(max_retries=0).chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
raise KeyError("mine")
