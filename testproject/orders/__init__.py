"""Orders whose confirmation is sent by a task, and which a timer cancels when they are not paid."""
