"""`python -m unspool`: the same as the command `unspool`."""

from unspool.cli import main

if __name__ == "__main__":
    main()
