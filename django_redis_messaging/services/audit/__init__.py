"""The audit trail: who changed what through the console."""

from .trail import AuditTrail, Entry

__all__ = ["AuditTrail", "Entry"]
