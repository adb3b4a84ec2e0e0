"""The users of the demo: sign-in, sample chats, and notifications about mentions."""
