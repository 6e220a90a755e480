"""``python -m jetlet``: the same as the command ``jetlet``."""

from __future__ import annotations

from jetlet.cli import main

if __name__ == "__main__":
    main(prog_name="python -m jetlet")
