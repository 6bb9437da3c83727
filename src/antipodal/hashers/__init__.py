"""Recommended hashers: scikit-learn estimators with one base class and one contract."""
