"""Quick monitors, and no internal error in the log, in all of these tests."""

from support.fixtures import no_internal_errors, quick_monitors
