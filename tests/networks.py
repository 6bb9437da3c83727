"""Construction of networks whose training options stand among their other settings."""

from antipodal import Training
from antipodal.hashers.training import OPTIONS


def network(kind, n_bits=64, **settings):
    """Return a network of this class; training options are put into its `training`."""
    options = {name: settings.pop(name) for name in OPTIONS if name in settings}
    return kind(n_bits, training=Training(**options), **settings)
