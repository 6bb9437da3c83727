"""`python -m antipodal` is the command line."""

from antipodal.cli import main

main()
