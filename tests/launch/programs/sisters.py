"""Ask a model through a sister client, for ever, and print each answer: `python sisters.py anthropic|groq BASE_URL`."""

import sys

if sys.argv[1] == "anthropic":
    import anthropic

    client = anthropic.Anthropic(base_url=sys.argv[2], api_key="any", max_retries=0)

    def ask():
        answer = client.messages.create(model="claude-opus-4-8", max_tokens=64, messages=[{"role": "user", "content": "hi"}])
        return answer.content[0].text

else:
    import groq

    client = groq.Groq(base_url=sys.argv[2], api_key="any", max_retries=0)

    def ask():
        answer = client.chat.completions.create(model="llama-3.3-70b-versatile", messages=[{"role": "user", "content": "hi"}])
        return answer.choices[0].message.content


for _ in range(10):
    print(ask())
