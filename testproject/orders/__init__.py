"""Orders: a task sends the confirmation, and a timer cancels orders that are not paid in time."""
