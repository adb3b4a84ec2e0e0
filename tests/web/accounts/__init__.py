"""User models of other sites."""
