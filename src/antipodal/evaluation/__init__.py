"""How well codes retrieve: every number with its tie order, its ceiling and its picture.

`ranking` counts items by distance and `metrics` turns the counts into scores; `ceiling` scores what
codes are made from; `report` writes the scores as a page, with the drawings of `charts`.
"""

from antipodal.evaluation.metrics import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
