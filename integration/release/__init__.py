"""Releases of the packages, whose versions are independent: `nox -s release`.

- `versions`: a package's version, and the pins of the packages that need it.
- `changelog`: what stands under "Unreleased" becomes the version, with the date.
- `urls`: where the project is at home, in every file that says so.
- `tree`: git: refuses a tree with changes, makes tags and never pushes.
- `build`: builds wheels and sdists, and checks them in empty environments.

`docs/releasing.md` describes how a release is made.
"""
