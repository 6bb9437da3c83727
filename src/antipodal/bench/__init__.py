"""Benchmarks: methods × code lengths × seeds."""
