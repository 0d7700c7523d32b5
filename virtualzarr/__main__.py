"""``python -m virtualzarr`` is the command ``virtualzarr``."""

from virtualzarr.cli import main

raise SystemExit(main())
