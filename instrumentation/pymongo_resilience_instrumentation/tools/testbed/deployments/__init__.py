"""What the test bed presents in front of a server: replica set, sharded cluster, standalone."""
