"""Benchmarks: runs, records, tables, figures and the demonstration."""
