"""A small demo site: `uv run testproject/manage.py demo`."""
