"""AutoDDL's cases (sections 5.1 and 5.2) in the cost model: our plans against Megatron's grids.

`python integration/autoddl` searches all six cases and writes `docs/results/autoddl/autoddl.json`
and the tables of `docs/autoddl.md`. AutoDDL measured on Piz Daint how much less its strategies
communicate than the best two-dimensional grid; here both are priced by one model of that machine.

- `cases`: the programs and meshes, and the search;
- `megatron`: the collectives of the grids, written by hand;
- `report`: the record and the page;
- `searches`: AutoDDL's searches (4.6), with `local_state`, on which two of them work;
- `chain`: the problem that AutoDDL tries them on;
- `figure_8`: the picture of what they find, `docs/pictures/searches.png`.
"""
