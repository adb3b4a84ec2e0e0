"""Broadcasts to all processes of a site: changed options, and cached values to delete."""
