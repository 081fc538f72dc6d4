"""``python -m redis_replay.cli``: the command line where its script is not on the PATH."""

import sys

from redis_replay.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
