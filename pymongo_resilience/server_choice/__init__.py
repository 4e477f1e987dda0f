"""Of two servers the less loaded one; and when a read is sent to a second server as well."""
