"""Orders whose confirmation is sent by a task."""
