"""`python -m perdure` is the command `perdure`."""

import sys

from perdure.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
