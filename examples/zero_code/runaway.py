"""Ask the same question for ever, and swallow every exception. Nothing in here knows of ravi-otel.

    ravi-otel run --limit requests=3 -- python examples/zero_code/runaway.py

One sees three answers and then refusals. Nothing more is sent. After the tenth refusal the program is slowed down, after
a hundred it is told to end; the report follows, and the exit status is 4. To try it without a key:

    python examples/zero_code/model.py ravi-otel run --limit requests=3 -- python examples/zero_code/runaway.py
"""

import openai

client = openai.OpenAI()
question = [{"role": "user", "content": "Where is parcel P-33? Answer with the street it is in, and nothing less."}]
refusals = 0

while True:
    try:
        reply = client.chat.completions.create(model="gpt-4.1-mini", messages=question, max_completion_tokens=60)
        print(reply.choices[0].message.content, flush=True)
    except Exception as error:  # noqa: BLE001 - this is the bug
        refusals += 1
        if refusals == 1:
            print(f"{type(error).__name__}, never mind", flush=True)
