"""Runs the commands of a small site."""

import multiprocessing
import os
import sys

if __name__ == "__main__":
    if "START_METHOD" in os.environ:
        multiprocessing.set_start_method(os.environ["START_METHOD"])
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
