"""What is shown of each command: its span, attributes, text, comment, and the hooks on it."""
