"""No test reads or writes the cache of whoever runs it; those of the cache name a folder of their own."""

from __future__ import annotations

import os

os.environ["DAYDREAM_CACHE"] = "off"
