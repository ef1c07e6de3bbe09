"""Figures 5, 6 and 8 of Zhuang et al., MLSys 2023, with real bytes on emulated hosts.

`python integration/crossnet figure5 figure6 figure8` brings up a lab of `netlab`, moves tensors
between its hosts with crossmesh, through torch's gloo and through MPI, and writes
`docs/results/crossnet/*.json`, `docs/crossmesh_figures.md` and its pictures. Times are in units of
`t`, in which one host sends the whole tensor once, so that they compare with the paper's ratios
although links and messages are smaller.

- `runs`: the transfers of each figure, as plans, and what the model says that they take;
- `rank`: one process, which stands for one device: executes plans, times and verifies them;
- `measure`: starts the processes on a lab, through gloo or MPI;
- `report`: the page and its pictures.
"""
