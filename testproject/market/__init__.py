"""A market: users buy and sell items. Code that changes an item holds its lock, and writes with its fence."""
