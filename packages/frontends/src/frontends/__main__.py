"""`python -m frontends`: train, plan, show."""

from frontends.cli.commands import main

if __name__ == "__main__":
    main()
