"""Plans that experts set by hand, over a grid, compared with the plan that is found."""
