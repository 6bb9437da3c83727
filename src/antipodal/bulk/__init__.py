"""Codes for more rows than one array holds: folders of parquet, here or on a cluster."""

from antipodal.bulk.encoder import BatchEncoder
from antipodal.bulk.run import Report, encode

__all__ = ["BatchEncoder", "Report", "encode"]
