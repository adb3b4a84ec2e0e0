"""`manage.py sync_directory`: makes the directories equal to the user model."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from .index_contacts import Command as IndexContacts


class Command(IndexContacts):
    """Indexes all users, and removes everybody else."""

    help = (
        "Make the directories equal to the user model (see IDENTITY): add users and update their labels, "
        "move them between directories, and remove who is gone, inactive or not allowed to use the pages, "
        "whoever added them. A run that was stopped is continued by the next one. Exit code 0: complete; 1: "
        "an error, or members that could not be stored (see the log); 3: stopped by a signal, run it again "
        "to continue."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options: those of index_contacts but --strict, which always holds."""
        self.add_shared_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the indexing."""
        super().handle(*args, **{**options, "strict": True})
