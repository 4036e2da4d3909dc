"""Ask the scripted model: the prompt says what the answer says it used."""

import openai

client = openai.OpenAI(max_retries=0)


def ask(prompt, model="m-small", **more):
    """Ask once; an answer that is a failure is the caller's to catch."""
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": prompt}], **more)
