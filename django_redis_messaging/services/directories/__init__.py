"""Directories: the members of a guild, found by a prefix of any word of their names."""

from .directory import Contact, Directory

__all__ = ["Contact", "Directory"]
