"""Quick monitors in all of these tests."""

from support.fixtures import quick_monitors
