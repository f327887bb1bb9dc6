"""`python -m ruda` and the console script `ruda`."""

import sys

from ruda.cli import main

if __name__ == "__main__":
    sys.exit(main())
