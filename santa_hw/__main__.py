"""``python -m santa_hw`` is the command ``santa-hw``."""

from santa_hw.cli import main

if __name__ == "__main__":
    main()
