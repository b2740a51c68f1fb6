/** Partitions as bars on a common scale of offsets, with the committed offsets of a group on them. */

import type { Group, Partition } from '../api/types';
import { bytes, compact, count, plural } from '../lib/format';
import { laneSegments, scaleOf } from '../lib/logs';
import { href } from '../lib/route';

function committedOffset(group: Group | undefined, index: number): number | null {
  return group?.partitions.find((item) => item.partition === index)?.committed ?? null;
}

function Lane({
  partition,
  scale,
  group,
  vhost,
}: {
  partition: Partition;
  scale: { first: number; next: number };
  group: Group | undefined;
  vhost: string;
}) {
  const committed = committedOffset(group, partition.index);
  const share =
    committed === null ? null : (committed - scale.first) / Math.max(1, scale.next - scale.first);
  const last =
    partition.next_offset > partition.first_offset ? count(partition.next_offset - 1) : 'none';
  const description = `Partition ${partition.index}: first offset ${count(partition.first_offset)}, last ${last}, ${plural(partition.segments.length, 'segment')}, ${bytes(partition.bytes)}`;
  return (
    <li class="lane" data-testid="lane">
      <a
        class="lane-name"
        href={href(['queues', vhost, partition.queue])}
        aria-label={`Partition ${partition.index}, queue ${partition.queue}`}
      >
        {partition.index}
      </a>
      <div class="lane-track" role="img" aria-label={description}>
        {laneSegments(partition, scale).map((segment, index, all) => (
          <span
            key={segment.base}
            class={index === all.length - 1 ? 'segment segment-open' : 'segment'}
            style={{ left: `${segment.left * 100}%`, width: `${segment.width * 100}%` }}
            title={`Offsets ${count(segment.base)} to ${count(Math.max(segment.base, segment.end - 1))}${`, ${bytes(segment.bytes)}`}`}
          />
        ))}
        {share !== null && (
          <span
            class="lane-mark"
            style={{ left: `${Math.min(1, Math.max(0, share)) * 100}%` }}
            title={`${group?.group}: committed ${count(committed)}`}
          />
        )}
      </div>
      <span class="lane-facts num">
        <span>
          {count(partition.first_offset)} – {last}
        </span>
        <span class="muted">
          {compact(partition.segments.length)} seg · {bytes(partition.bytes)}
        </span>
      </span>
    </li>
  );
}

export function PartitionLanes({
  partitions,
  group,
  vhost,
}: {
  partitions: readonly Partition[];
  group: Group | undefined;
  vhost: string;
}) {
  const scale = scaleOf(partitions);
  return (
    <>
      <ol class="lanes" aria-label="Partitions" data-testid="lanes">
        {partitions.map((partition) => (
          <Lane
            key={partition.index}
            partition={partition}
            scale={scale}
            group={group}
            vhost={vhost}
          />
        ))}
      </ol>
      <ul class="lane-key muted" aria-label="Legend" data-testid="lane-key">
        <li>
          <span class="lane-swatch segment-sealed" aria-hidden="true" /> closed segments
        </li>
        <li>
          <span class="lane-swatch segment-open" aria-hidden="true" /> active segment
        </li>
        {group && (
          <li>
            <span class="lane-swatch lane-swatch-mark" aria-hidden="true" /> committed by{' '}
            {group.group}
          </li>
        )}
      </ul>
    </>
  );
}
