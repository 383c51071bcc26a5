"""`python -m tprig`."""

import sys

from tprig.cli import main

if __name__ == "__main__":
    sys.exit(main())
