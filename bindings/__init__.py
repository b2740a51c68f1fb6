"""Given a routing key and headers, who is interested? Knows nothing of exchanges or queues."""

from bindings.binding import Binding, Destination, DestinationKind
from bindings.headers import HeadersMatcher
from bindings.matchers import DirectMatcher, FanoutMatcher, Matcher
from bindings.partition import PartitionMatcher
from bindings.spreading import ConsistentHashMatcher, ModulusHashMatcher, RandomMatcher
from bindings.topic import MOST_STEPS, TopicMatcher

__all__ = [
    "MOST_STEPS",
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
