"""`python -m frontends`: train, plan, show."""

from frontends.cli import main

if __name__ == "__main__":
    main()
