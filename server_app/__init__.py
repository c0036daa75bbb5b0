"""The post office: the ServerApp, and the only code that writes results."""

import os

from server_app.environment import prefer_compiled

# Ray passes on what simulated hospitals log. It reads these when it is imported, and Flower does
# that a moment after it has begun to import this package: no colours, and every line, not one for
# all hospitals whose lines differ in numbers alone.
os.environ.setdefault("RAY_COLOR_PREFIX", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# Ray hands the import path on to simulated hospitals.
prefer_compiled()
