"""`python -m frontends` runs the commands of `frontends.cli.commands`."""

from frontends.cli.commands import main

if __name__ == "__main__":
    main(name="python -m frontends")
