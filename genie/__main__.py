"""``python -m genie``."""

from genie.cli import main

main()
