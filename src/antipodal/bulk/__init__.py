"""Bulk encoding: parquet to parquet, locally or on a Ray cluster."""

from antipodal.bulk.encoder import BatchEncoder
from antipodal.bulk.run import Report, encode

__all__ = ["BatchEncoder", "Report", "encode"]
