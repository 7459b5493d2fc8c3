"""`python -m jitgrad`: the command line (command_line.py)."""

import sys

from jitgrad.command_line import main

if __name__ == "__main__":
    sys.exit(main())
