"""`python -m tests.fuzz --cases 20000`: hostile input to every command; exit 1 if any of it did harm."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

from fuzz.running import main  # noqa: E402

sys.exit(main())
