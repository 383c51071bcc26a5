"""`python -m ci`."""

from __future__ import annotations

import sys

from ci.app import main

if __name__ == "__main__":
    sys.exit(main())
