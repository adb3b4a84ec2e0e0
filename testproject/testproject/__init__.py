"""A small site that shows the app: `uv run testproject/manage.py demo`."""
