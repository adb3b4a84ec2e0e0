"""Users: the index of their chats, whom they have blocked, their choices and recent contacts."""
