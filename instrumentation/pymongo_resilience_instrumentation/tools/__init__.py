"""Programs around the library: command line, test bed, demo, doctor, dashboards, and pytest
plugin.
"""
