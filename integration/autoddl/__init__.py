"""AutoDDL's cases (sections 5.1 and 5.2) in the cost model: what is found against Megatron's grids.

`python integration/autoddl` searches all six, writes `docs/results/autoddl/autoddl.json` and the
tables of `docs/autoddl.md`. AutoDDL measured on Piz Daint how much less its strategies communicate
than the best two-dimensional grid; here both are priced by the same model of that machine.

- `cases`: the programs and meshes, and the search;
- `megatron`: the grids, collective by collective, by hand;
- `report`: the record and the page.
"""
