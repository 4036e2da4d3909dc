"""Say what a call costs, in integers, and say so when nobody knows."""

from ravi_otel._pricing.book import PriceBook
from ravi_otel._pricing.rates import RateCard, Rates

__all__ = ["PriceBook", "RateCard", "Rates"]
