"""A small demo site: `uv run --no-dev --group demo testproject/manage.py demo`."""
