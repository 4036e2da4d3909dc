"""Let an agent of Pydantic AI answer a refund request. Nothing in here knows of ravi-otel.

    pip install 'pydantic-ai-slim[openai]'
    ravi-otel run --limit requests=10 --limit cost=0.05usd -- python examples/zero_code/with_pydantic_ai.py

One sees the agent's answer, and at the end, on standard error, the tree of the requests it made through the `openai`
client and what is left of the limits. With `--limit requests=2` its third request is refused: BudgetExhaustedError comes
out of `run_sync`, and the exit status is 4. To try it without a key:

    python examples/zero_code/model.py ravi-otel run --limit requests=10 -- python examples/zero_code/with_pydantic_ai.py
"""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

CUSTOMERS = {"ada@example.com": {"id": 7, "name": "Ada"}}
ORDERS = {"A-1007": {"customer_id": 7, "item": "kettle", "price_usd": 39.9}}

clerk = Agent(
    OpenAIChatModel("gpt-4.1-mini"),
    instructions="You are a refund clerk. Look up the customer and the order, refund what is due, then say DONE.",
)


@clerk.tool_plain
def look_up_customer(email: str) -> dict:
    """Find a customer by e-mail address."""
    return CUSTOMERS.get(email, {"error": f"no customer {email}"})


@clerk.tool_plain
def look_up_order(order_id: str) -> dict:
    """Find an order by its number, such as A-1000."""
    return ORDERS.get(order_id, {"error": f"no order {order_id}"})


@clerk.tool_plain
def issue_refund(order_id: str, amount_usd: float) -> dict:
    """Pay back the price of an order."""
    print(f"paid {amount_usd} USD back for {order_id}")
    return {"refunded": True}


if __name__ == "__main__":
    done = clerk.run_sync("Hello, my kettle from order A-1007 arrived broken. I would like my money back. Ada, ada@example.com")
    print(done.output)
