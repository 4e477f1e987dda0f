"""The driver's retry loop: attempts, budgets, deprioritized servers."""
