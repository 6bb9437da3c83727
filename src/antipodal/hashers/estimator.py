"""The interface of scikit-learn estimators, without importing scikit-learn.

Importing `sklearn.base` takes about a second and 100 MB, and encoding does not need it. The
classes here have the methods of `BaseEstimator` and `TransformerMixin`, and import scikit-learn
where they need it: to fit, to report errors, and for data frames.
"""

import inspect
import sys
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Estimator:
    """Object with parameters: the arguments of its constructor, stored under their names."""

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted(name for name in inspect.signature(cls.__init__).parameters if name != "self")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if `deep`, also those of parameters, as ``name__inner``.

        Parameters
        ----------
        deep : bool
            Include the parameters of parameters that are estimators.
        """
        params: dict[str, Any] = {}
        for name in self._get_param_names():
            value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                params |= {f"{name}__{inner}": v for inner, v in value.get_params().items()}
            params[name] = value
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, those of a parameter as ``name__inner``, and return self."""
        nested: dict[str, dict[str, Any]] = {}
        known = self._get_param_names()
        for key, value in params.items():
            name, inner, rest = key.partition("__")
            if name not in known:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self}. "
                    f"Valid parameters are: {known!r}."
                )
            if inner:
                nested.setdefault(name, {})[rest] = value
            else:
                setattr(self, name, value)
        for name, inner_params in nested.items():
            getattr(self, name).set_params(**inner_params)
        return self

    def __repr__(self) -> str:
        """Return the constructor call with the parameters that are not at their defaults."""
        parameters = inspect.signature(type(self).__init__).parameters
        values = {name: repr(getattr(self, name, None)) for name in self._get_param_names()}
        changed = (f"{n}={v}" for n, v in values.items() if v != repr(parameters[n].default))
        return f"{type(self).__name__}({', '.join(changed)})"


class Transformer(Estimator):
    """Estimator with `fit` and `transform`, whose columns are named after its class."""

    _sklearn_auto_wrap_output_keys = frozenset({"transform"})  # scikit-learn may call set_output

    def fit_transform(self, X: ArrayLike, y: ArrayLike | None = None, **fit_params: Any) -> Any:
        """Fit to X, and y if given, and return `transform(X)`."""
        labels = () if y is None else (y,)
        return self.fit(X, *labels, **fit_params).transform(X)  # type: ignore[attr-defined]

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[np.object_]:
        """Return the names of the columns of `transform`: the class name and a number.

        Parameters
        ----------
        input_features : ignored
            For the interface of scikit-learn.
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        prefix, n_columns = type(self).__name__.lower(), self._n_features_out  # type: ignore[attr-defined]
        return np.asarray([f"{prefix}{i}" for i in range(n_columns)], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose the type of the result of `transform`, and return self.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, optional
            An array or a data frame; None changes nothing.
        """
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}
        return self

    def _in_container(self, values: NDArray[Any], X: ArrayLike) -> Any:
        """Return the result of `transform(X)` as chosen by `set_output` or `set_config`."""
        kind = vars(self).get("_sklearn_output_config", {}).get("transform")
        if kind is None and "sklearn" in sys.modules:
            kind = sys.modules["sklearn"].get_config()["transform_output"]
        if kind in (None, "default"):
            return values
        from sklearn.base import BaseEstimator, TransformerMixin

        class Container(TransformerMixin, BaseEstimator):  # type: ignore[misc]
            """Transformer that returns the values, as scikit-learn converts its results."""

            get_feature_names_out = self.get_feature_names_out

            def transform(self, X: ArrayLike) -> NDArray[Any]:
                return values

        return Container().set_output(transform=kind).transform(X)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
        )
