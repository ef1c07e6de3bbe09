"""Runs tests at night, once for each state of the sources that they depend on: `nox -s nightly`.

- `sources`: the test files, with a digest of everything that each one depends on;
- `entries`: what has to run: each test file once with many examples, those of processes often;
- `memory`: the entries that have passed, kept from night to night and during a night;
- `night`: runs the entries that have not passed yet;
- `report`: which tests passed on which commit, for docs/nights.md.
"""
