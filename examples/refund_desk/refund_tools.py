"""Be what the refund desk can do: look a customer up, pay back, write an e-mail. Nothing in here decides whether it should."""

import threading
from decimal import Decimal
from typing import Any

CUSTOMERS = {
    42: {"name": "Ada", "tier": "pro", "last_charge_usd": 1200.0, "order": "A-1042", "delivered": False},
    7: {"name": "Bo", "tier": "free", "last_charge_usd": 49.0, "order": "A-1007", "delivered": True},
    99: {"name": "Cleo", "tier": "enterprise", "last_charge_usd": 6000.0, "order": "A-1099", "delivered": False},
}


class RefundTools:
    """Hold the shop's books; `paid` and `sent` are what was really done, whoever asked for it."""

    def __init__(self, customers=CUSTOMERS):
        self._customers = customers
        self._lock = threading.Lock()  # a tool of plain code may run in any thread
        self.paid = []
        self.sent = []

    @property
    def registry(self):
        """Give the tools by the names that a worker knows them by."""
        return {each.__name__: each for each in (self.get_refund_context, self.issue_refund, self.send_refund_email)}

    def get_refund_context(self, user_id: int) -> dict[str, Any]:
        """Give what a customer paid last and what became of the order. Changes nothing."""
        customer = self._customers.get(user_id)
        if customer is None:
            return {"error": f"context_not_found_for_user:{user_id}"}
        return {"user_id": user_id, **customer}

    def issue_refund(self, user_id: int, amount_usd: float, reason: str) -> dict[str, Any]:
        """Pay a customer back in US dollars, all refunds together no more than the last charge. Say the reason for the books."""
        customer = self._customers.get(user_id)
        if customer is None:
            return {"status": "error", "error": f"refund_user_not_found:{user_id}"}
        if not amount_usd > 0:  # not `<= 0`, which is false of NaN
            return {"status": "error", "error": "refund_amount_must_be_positive"}
        with self._lock:
            before = sum((_exact(amount) for user, amount, _ in self.paid if user == user_id), Decimal())
            left = _exact(customer["last_charge_usd"]) - before
            if _exact(amount_usd) > left:
                return {"status": "error", "error": "refund_exceeds_last_charge", "max_refund_usd": float(left)}
            self.paid.append((user_id, float(amount_usd), reason))
            return {"status": "ok", "refund_id": f"rf_{user_id}_{len(self.paid)}", "amount_usd": float(amount_usd)}

    def send_refund_email(self, user_id: int, amount_usd: float, message: str) -> dict[str, Any]:
        """Tell a customer by e-mail what was paid back."""
        if user_id not in self._customers:
            return {"status": "error", "error": f"email_user_not_found:{user_id}"}
        with self._lock:
            self.sent.append((user_id, float(amount_usd), message))
            return {"status": "ok", "email_id": f"em_{user_id}_{len(self.sent)}"}


def _exact(usd):
    """Give an amount as it is written: 0.1 and 0.2 are 0.3 together."""
    return Decimal(str(usd))
