/** Partitions, records and groups of logs, prepared for display. Pure. */

import type { Group, GroupMember, Log, LogRecord, Message, Partition } from '../api/types';
import { bytes, duration, plural } from './format';

export interface LaneSegment {
  base: number;
  end: number;
  /** Position and width on the lane, from 0 to 1. */
  left: number;
  width: number;
  bytes: number;
}

/** The segments on a scale that all lanes share, so that their lengths can be compared. */
export function laneSegments(
  partition: Partition,
  scale: { first: number; next: number },
): LaneSegment[] {
  const span = Math.max(1, scale.next - scale.first);
  return partition.segments.map((segment, index, all) => {
    const end = all[index + 1]?.base_offset ?? partition.next_offset;
    return {
      base: segment.base_offset,
      end,
      left: (segment.base_offset - scale.first) / span,
      width: Math.max(0, end - segment.base_offset) / span,
      bytes: segment.bytes,
    };
  });
}

export function scaleOf(partitions: readonly Partition[]): { first: number; next: number } {
  if (partitions.length === 0) return { first: 0, next: 1 };
  return {
    first: Math.min(...partitions.map((partition) => partition.first_offset)),
    next: Math.max(...partitions.map((partition) => partition.next_offset), 1),
  };
}

export type ResetKind = 'first' | 'last' | 'next' | 'offset' | 'time';

/** The target of a reset, as the API has it: first, last, next, an offset, or a time in ISO 8601. */
export function resetTarget(kind: ResetKind, text: string): string | number {
  if (kind === 'offset') {
    if (!/^\d+$/.test(text.trim())) throw new Error('The offset must be a whole number.');
    return Number(text);
  }
  if (kind === 'time') {
    const at = Date.parse(text);
    if (Number.isNaN(at)) throw new Error('Choose a date and a time.');
    return new Date(at).toISOString();
  }
  return kind;
}

export type RecordsStart = 'first' | 'last' | 'offset' | 'time';
export const RECORDS_SHOWN = 50;

/** The query that reads records of a partition from a start on. */
export function recordsQuery(partition: string, start: RecordsStart, text: string): string {
  return new URLSearchParams({
    partition,
    offset: String(resetTarget(start, text)),
    count: String(RECORDS_SHOWN),
  }).toString();
}

/** A record for the list of messages, with its offset as the position. */
export function recordAsMessage(record: LogRecord, now: number): Message {
  return {
    position: record.offset,
    exchange: record.exchange,
    routing_key: record.key,
    redelivered: false,
    properties: { ...record.properties, headers: record.headers },
    payload: record.value,
    payload_bytes:
      record.encoding === 'base64'
        ? atob(record.value).length
        : new TextEncoder().encode(record.value).length,
    payload_encoding: record.encoding,
    age_ms: Math.max(0, now - record.timestamp),
  };
}

/** When the offsets of a group are committed. */
export function commitText(group: Group): string {
  if (group.commit === 'delivery') return 'commits before delivery';
  if (group.commit === 'interval') return `commits every ${duration(group.commit_interval_ms)}`;
  return 'commits on ack';
}

/** Members without a partition, because the group has more members than partitions. */
export function waitingMembers(group: Group): GroupMember[] {
  return group.members.filter((member) => member.partitions.length === 0);
}

/** Whether a member has an AMQP connection, which has a page. */
export function isConnection(member: GroupMember): boolean {
  return member.connection !== '' && !member.connection.startsWith('HTTP API');
}

/** How long records are kept. */
export function retentionText(log: Log): string {
  const parts = [
    ...(log.cleanup_policy === 'compact' ? ['keeps the newest record of each key'] : []),
    ...(log.max_age_ms ? [`keeps records for ${duration(log.max_age_ms)}`] : []),
    ...(log.max_length_bytes ? [`at most ${bytes(log.max_length_bytes)}`] : []),
  ];
  return parts.length === 0 ? 'keeps records forever' : parts.join(', ');
}

export function damageCount(partitions: readonly Partition[]): number {
  return partitions.reduce((sum, partition) => sum + partition.damage.length, 0);
}

const MAX_DAMAGE_SHOWN = 5;

/** Which records are lost, and why. */
export function lostText(partitions: readonly Partition[]): string[] {
  const all = partitions.flatMap(({ index, damage }) =>
    damage.map(({ first_offset, next_offset, reason }) => {
      const until = next_offset === null ? 'on' : `to ${next_offset - 1}`;
      return `partition ${index}, offsets from ${first_offset} ${until} (${reason})`;
    }),
  );
  const more = all.length - MAX_DAMAGE_SHOWN;
  return more > 0 ? [...all.slice(0, MAX_DAMAGE_SHOWN), `and ${more} more`] : all;
}

/** The log of which this queue is a partition. */
export function logWithPartition(logs: readonly Log[], queue: string): Log | undefined {
  return logs.find(
    (log) => log.partitioned && log.partitions.some((partition) => partition.queue === queue),
  );
}

/** What is lost when a log is deleted. */
export function lossText(log: Log): string {
  const parts = [
    plural(log.messages, 'record'),
    ...(log.partitioned ? [plural(log.partitions.length, 'partition')] : []),
    ...(log.groups.length > 0 ? [`the offsets of ${plural(log.groups.length, 'group')}`] : []),
  ];
  return `The log, its bindings, ${parts.join(', ')} will be lost`.replace(/, ([^,]*)$/, ' and $1');
}
