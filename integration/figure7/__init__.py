"""Figure 7 of Zhuang et al. (MLSys 2023), simulated: how much communication is hidden."""
