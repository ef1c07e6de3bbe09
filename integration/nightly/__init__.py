"""What runs at night, once for each state of the sources that it depends on: `nox -s nightly`.

- `sources`: the test files, and a digest of all that each of them depends on;
- `entries`: what is run of them: each once with many examples, those of processes often;
- `memory`: what passed, kept from night to night and while one runs;
- `night`: runs what is not remembered;
- `report`: what passed on which commit, for docs/nights.md.
"""
