"""One address of a deployment: its connections, what passes them, and the server behind."""
