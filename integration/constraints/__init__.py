"""Rules across packages, which the tests of a single package cannot check: `nox -s constraints`.

- `pins`: every requirement on another package of this repository admits its version.
- `imports`: a package imports what it declares, and only in the direction of the architecture.
- `floors`: inside a package, imports go down, too.
- `assertions`: `assert` is only for tests and checkers.
- `words`: a public class and a word of the glossary mean one thing in all packages.
- `changelog`: a changed `src/` has an entry.

Each check yields its violations as text, one line each.
"""
