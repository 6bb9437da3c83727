"""Baselines: methods of other papers that the recommended hashers are compared with."""
