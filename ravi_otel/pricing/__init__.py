"""Say what a call costs, in integers, and say so when nobody knows."""

from ravi_otel.pricing.book import PriceBook
from ravi_otel.pricing.rates import RateCard, Rates

__all__ = ["PriceBook", "RateCard", "Rates"]
