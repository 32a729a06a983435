"""``python -m tapml``, as the command ``tapml``."""

from tapml.cli.start import main

if __name__ == "__main__":
    raise SystemExit(main())
