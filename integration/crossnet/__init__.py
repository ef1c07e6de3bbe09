"""Figures 5, 6 and 8 of Zhuang et al., MLSys 2023, with real bytes on emulated hosts.

`python integration/crossnet figure5 figure6 figure8` brings up a lab of `netlab`, moves tensors
between its hosts with crossmesh, over torch's gloo and over MPI, and writes
`docs/results/crossnet/*.json`, `docs/crossmesh_figures.md` and its pictures. Times are in units of
`t`, the time in which one host sends the whole tensor once, so that they can be compared with the
paper's ratios although links and messages are smaller.

- `runs`: the transfers of each figure as plans, with the times that the model predicts;
- `rank`: the process that stands for one device: it executes plans, times and verifies them;
- `measure`: starts the processes on a lab, over gloo or MPI;
- `report`: the page and its pictures.
"""
