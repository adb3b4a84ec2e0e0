"""Aggregates: the lines of files, counted by period and key, each exactly once."""

from .aggregator import Aggregator, Count, Counted, Countries

__all__ = ["Aggregator", "Count", "Counted", "Countries"]
