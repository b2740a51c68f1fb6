"""Which destinations match a routing key and headers. Knows nothing of exchanges or queues."""

from leveret.bindings.binding import Binding, Destination, DestinationKind
from leveret.bindings.hash_matchers import (
    ConsistentHashMatcher,
    ModulusHashMatcher,
    RandomMatcher,
)
from leveret.bindings.headers import HeadersMatcher
from leveret.bindings.matchers import DirectMatcher, FanoutMatcher, Matcher
from leveret.bindings.partition import PartitionMatcher
from leveret.bindings.topic import MAX_STEPS, TopicMatcher

__all__ = [
    "MAX_STEPS",
    "Binding",
    "ConsistentHashMatcher",
    "Destination",
    "DestinationKind",
    "DirectMatcher",
    "FanoutMatcher",
    "HeadersMatcher",
    "Matcher",
    "ModulusHashMatcher",
    "PartitionMatcher",
    "RandomMatcher",
    "TopicMatcher",
]

if __name__ != "leveret.bindings":  # the folder of a checkout whose root is on sys.path
    raise ImportError("import leveret.bindings instead of bindings", name=__name__)
