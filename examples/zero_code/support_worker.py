"""Answer a refund request with tools, then stream the letter. Nothing in here knows of ravi-otel.

    ravi-otel run --limit requests=10 --limit cost=0.05usd -- python examples/zero_code/support_worker.py

One sees what the program prints by itself, and at the end, on standard error, the tree of its calls and what is left of
its limits; the exit status is the program's own. With `--limit requests=2` it is refused its third request, ends with
the traceback of BudgetExhaustedError, and the exit status is 4. To try it without a key:

    python examples/zero_code/model.py ravi-otel run --limit requests=10 -- python examples/zero_code/support_worker.py
"""

import json

import openai

MODEL = "gpt-4.1-mini"
MAIL = "Hello, my kettle from order A-1007 arrived broken. I would like my money back. Ada, ada@example.com"

CUSTOMERS = {"ada@example.com": {"id": 7, "name": "Ada"}}
ORDERS = {"A-1007": {"customer_id": 7, "item": "kettle", "price_usd": 39.9}}
REFUNDS = {}


def look_up_customer(email):
    return CUSTOMERS.get(email, {"error": f"no customer {email}"})


def look_up_order(order_id):
    return ORDERS.get(order_id, {"error": f"no order {order_id}"})


def issue_refund(order_id, amount_usd):
    if order_id not in ORDERS or order_id in REFUNDS or not 0 < amount_usd <= ORDERS[order_id]["price_usd"]:
        return {"refunded": False}
    REFUNDS[order_id] = amount_usd
    return {"refunded": True, "amount_usd": amount_usd}


TOOLS = {"look_up_customer": look_up_customer, "look_up_order": look_up_order, "issue_refund": issue_refund}


def describe(name, about, **types):
    schema = {"type": "object", "properties": {field: {"type": kind} for field, kind in types.items()}, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


DESCRIPTIONS = [
    describe("look_up_customer", "Find a customer by e-mail address.", email="string"),
    describe("look_up_order", "Find an order by its number, such as A-1000.", order_id="string"),
    describe("issue_refund", "Pay back the price of an order.", order_id="string", amount_usd="number"),
]


def use_tool(call):
    print(f"{call.function.name}({call.function.arguments})", flush=True)
    try:
        return TOOLS[call.function.name](**json.loads(call.function.arguments))
    except (KeyError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    client = openai.OpenAI()
    messages = [
        {"role": "system", "content": "You are a refund clerk. Look up the customer and the order, refund what is due, then say DONE."},
        {"role": "user", "content": MAIL},
    ]
    while True:
        reply = client.chat.completions.create(model=MODEL, messages=messages, tools=DESCRIPTIONS, max_completion_tokens=300)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = use_tool(call)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})

    messages.append({"role": "user", "content": "Now write the answer to the customer, in two short sentences."})
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}, max_completion_tokens=200
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
