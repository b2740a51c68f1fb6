"""The writer thread and readers at the same time."""

from concurrent.futures import ThreadPoolExecutor

from leveret.queues.log.files import Partition
from tests.unit.log.helpers import entries, small

BATCHES = 400
END = 10 * BATCHES


def write(log: Partition, progress: dict[int, int]) -> None:
    for i in range(BATCHES):
        log.write(entries(10 * i, 10), i)
        log.sync()
        if i % 20 == 0:
            passed = min(progress.values())
            sealed = [s for s in log.segments() if s.sealed and s.next_offset <= passed]
            log.drop_oldest(len(sealed))


def follow(log: Partition, progress: dict[int, int], step: int) -> None:
    while progress[step] < END:
        for record in log.read(progress[step], max_records=step):
            assert record.offset == progress[step]
            assert int(record.body[:9]) == record.offset
            progress[step] += 1


def test_readers_follow_the_writer_through_rolls_and_deleted_segments(tmp_path):
    log = small(tmp_path, 20_000)
    progress = {1: 0, 64: 0}
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(follow, log, progress, step) for step in progress]
        jobs.append(pool.submit(write, log, progress))
        for job in jobs:
            job.result()
    assert progress == {1: END, 64: END}
    assert log.damage() == []
    log.close()
