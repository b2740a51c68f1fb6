from collections import Counter

import pytest

from leveret.model.partitioning import Partitioner, partition_of


def test_rabbitmq_stream_clients_choose_the_same_partition():
    """Pairs from the tests of RabbitMQ's own clients, for three partitions."""
    partitions = [partition_of(b"hello%d" % n, 3) for n in range(1, 7)]
    assert partitions == [1, 0, 1, 2, 0, 2]


def test_hash_is_unsigned():
    assert all(0 <= partition_of(b"%d" % n, 7) < 7 for n in range(1000))


def test_key_always_goes_to_the_same_partition():
    first, second = Partitioner(5), Partitioner(5)
    second.choose(b"")
    for n in range(100):
        assert first.choose(b"%d" % n) == second.choose(b"%d" % n) == partition_of(b"%d" % n, 5)


def test_keys_are_distributed():
    counts = Counter(partition_of(b"key-%d" % n, 4) for n in range(4000))
    assert all(800 < count < 1200 for count in counts.values())


def test_records_without_a_key_are_balanced():
    partitioner = Partitioner(3)
    counts = Counter(partitioner.choose(b"") for _ in range(100))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_explicit_partition_is_used_or_rejected():
    partitioner = Partitioner(3)
    assert partitioner.choose(b"hello1", explicit=2) == 2
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match="no partition"):
            partitioner.choose(b"", explicit=wrong)


def test_partitioner_needs_a_partition():
    with pytest.raises(ValueError):
        Partitioner(0)
