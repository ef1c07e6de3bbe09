"""`python -m shardspec`."""

from shardspec.cli.commands import main

if __name__ == "__main__":
    main()
