"""Codes for more rows than one array holds: folders of parquet, here or on a cluster."""

from antipodal.bulk.encoder import Encoder
from antipodal.bulk.run import Report, encode

__all__ = ["Encoder", "Report", "encode"]
