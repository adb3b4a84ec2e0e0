#!/usr/bin/env python
"""Management commands of the demo site."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.umask(0o077)  # the demo's database has sessions and orders: only its owner may read the files
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    execute_from_command_line(sys.argv)
