"""Sessions and transactions: with_transaction, their one timeout, their span."""
