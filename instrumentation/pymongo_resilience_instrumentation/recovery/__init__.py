"""How fast a client finds servers again: its monitors are woken after network errors, and check a
server that went away more often while an operation waits for it."""
