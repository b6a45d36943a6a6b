"""``python -m genie.userns ARGUMENTS``: enter a user namespace, then run the command line in it."""

from __future__ import annotations

import sys

from genie.testbed.namespaces import enter_user_namespace

if __name__ == "__main__":
    enter_user_namespace()
    from genie.cli import main

    main(sys.argv[1:])
