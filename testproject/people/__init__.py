"""The people of the demo: who they are, how they sign in, what they have said so far."""
