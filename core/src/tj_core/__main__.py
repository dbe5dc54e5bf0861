"""``python -m tj_core`` is ``tj``."""

from tj_core.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
