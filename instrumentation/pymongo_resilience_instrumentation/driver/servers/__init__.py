"""How pymongo reaches servers: topologies, monitors and their checks, pools, connections."""
