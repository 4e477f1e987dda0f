"""Programs around the library: the test bed, demo, doctor, report, dashboards, pytest plugin."""
