"""Hashers × code lengths × seeds: `cells` measures, `records` keeps, `summary` makes the tables."""
