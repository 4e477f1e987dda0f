"""How soon operations go on after a failure. Monitors are woken after network errors, and check a
lost server more often while an operation waits for it. What waits for a member that is no longer
the primary is interrupted. Connections to a silent host are closed."""
