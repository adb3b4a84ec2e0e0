"""Rate limits: how often something may be done in a period."""

from .rate_limit import Decision, Rate, RateLimit, parse_rates

__all__ = ["Decision", "Rate", "RateLimit", "parse_rates"]
