"""Every option: its variable, its default, what is legal, and where its value comes from."""
