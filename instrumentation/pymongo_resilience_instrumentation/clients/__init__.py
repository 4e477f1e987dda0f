"""Living clients: the registry, options taken out of their arguments, set-up of a new one."""
