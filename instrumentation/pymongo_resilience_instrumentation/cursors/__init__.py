"""Cursors and change streams: creation, batches, close, and the timeout that each keeps."""
