"""The console: pages on which operators see all that the app does for a site, and act on it."""
