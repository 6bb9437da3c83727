"""The paper: solver, unfolding, losses, training."""
