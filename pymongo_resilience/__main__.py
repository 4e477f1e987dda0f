"""``python -m pymongo_resilience`` runs the command ``pymongo-resilience``."""

import sys

from pymongo_resilience_instrumentation.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
