"""Rules between the packages, which no single package's tests can see; for `nox -s constraints`.

`pins`: every sibling pin admits the sibling's version. `imports`: a package imports what it
declares, and only in the direction of the architecture. `floors`: in a package, too, imports go
down. `changelog`: a changed `src/` has an entry.
Each check yields violations as text, one a line, and nothing when all is well.
"""
