"""One table of options under which every method has something to do in a few rounds, for tests that ask all of them."""

from __future__ import annotations

from coterie.methods import method_classes

SPECS = {
    "cfl": "cfl:rule=paper(eps1=10,eps2=0.001,gamma_max=0.05,wait=2)",
    "clove": "clove:k=2",
    "fedcuau": "fedcuau:clusters=2",
    "feddrift": "feddrift:most=3",
    "fedem": "fedem:components=2",
    "fedrc": "fedrc:components=2",
    "fedsem": "fedsem:clusters=2",
    "fedsoft": "fedsoft:clusters=2,interval=2",
    "flhc": "flhc:warmup_rounds=1",
    "flt": "flt:encoder=pca,clusters=2,signature=centroids",
    "groups": "groups:of={'client-0':'a','client-1':'b','client-2':'a','client-5':'c','client-00':'a','client-01':'b'}",
    "ifca": "ifca:k=2",
    "oneshot": "oneshot:k=2,warmup_rounds=1",
    "pacfl": "pacfl:clusters=2",
    "pca-kmeans-hc": "pca-kmeans-hc:basis=public,clusters=2,show_centroids=true",
}
"""Six clients and three rounds are enough; a method that is not here is run as it is."""

METHODS = sorted(
    name for name, cls in method_classes().items() if cls.__module__.partition(".")[0] in ("coterie", "coterie_field")
)
"""Our methods by name, without those of other packages that happen to be installed."""


def spec_of(name: str) -> str:
    """The method with its options."""
    return SPECS.get(name, name)
