"""The paper: convex solver, dictionary learning, unfolded encoders, losses and training."""
