"""Server selection: selector, counts in flight, breakers, terminal causes, explanations, status."""
