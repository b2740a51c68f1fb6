"""`python -m leveret` is the command `leveret`."""

from leveret.cli import main

if __name__ == "__main__":
    main()
