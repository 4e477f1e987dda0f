"""The less loaded one of two servers; and when a read is sent to a second server as well."""
