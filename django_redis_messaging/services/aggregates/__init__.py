"""Aggregates: the lines of files, counted by period and key, each exactly once."""

from .aggregator import Aggregator
from .countries import Countries
from .values import Count, Counted

__all__ = ["Aggregator", "Count", "Counted", "Countries"]
