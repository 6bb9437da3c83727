"""What several hashers share: anchors, kernels, cuts, the classifier."""
