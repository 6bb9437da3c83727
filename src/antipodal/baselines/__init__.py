"""Baselines: the methods that the recommended ones are compared with."""
