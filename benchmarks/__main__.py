"""`python -m benchmarks`. Worker processes import this file, so it imports nothing at the top."""

if __name__ == "__main__":
    import sys

    from benchmarks.cli import main

    sys.exit(main())
