"""What codes lose of a set of vectors: their true neighbours, how many of them each code keeps."""

from antipodal.auditing.findings import Audit
from antipodal.auditing.measure import audit, audit_codes
from antipodal.auditing.setting import Setting

__all__ = ["Audit", "Setting", "audit", "audit_codes"]
