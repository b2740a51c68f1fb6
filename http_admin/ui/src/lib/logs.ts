/** Lanes and lag of log-mode queues. Pure. */

import type { Group, Log, LogRecord, Message, Partition, Segment } from '../api/types';
import { bytes, duration, plural } from './format';

export interface LaneSegment {
  base: number;
  end: number;
  /** Place and width on the lane, 0 to 1. */
  left: number;
  width: number;
  bytes: number | undefined;
}

export function segmentCount(partition: Partition): number {
  return typeof partition.segments === 'number' ? partition.segments : partition.segments.length;
}

/** Segments as shares of one scale for all lanes, so that their lengths can be compared. */
export function laneSegments(partition: Partition, scale: { first: number; next: number }): LaneSegment[] {
  const span = Math.max(1, scale.next - scale.first);
  return segmentsOf(partition).map((segment, index, all) => {
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

/** A server that sends only the number of segments still gets a lane with one block. */
function segmentsOf(partition: Partition): Segment[] {
  if (Array.isArray(partition.segments) && partition.segments.length > 0) return partition.segments;
  if (partition.next_offset <= partition.first_offset) return [];
  return [{ base_offset: partition.first_offset, bytes: partition.bytes }];
}

export function scaleOf(partitions: readonly Partition[]): { first: number; next: number } {
  if (partitions.length === 0) return { first: 0, next: 1 };
  return {
    first: Math.min(...partitions.map((one) => one.first_offset)),
    next: Math.max(...partitions.map((one) => one.next_offset), 1),
  };
}

export function totalLag(group: Group): number {
  return group.partitions.reduce((sum, one) => sum + (one.lag ?? 0), 0);
}

export function records(partitions: readonly Partition[]): number {
  return partitions.reduce((sum, one) => sum + (one.messages ?? Math.max(0, one.next_offset - one.first_offset)), 0);
}

export type ResetKind = 'first' | 'last' | 'next' | 'offset' | 'time';

/** What the reset call wants: a word, an offset, or a time in ISO 8601 (a bare number is an offset). */
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

/** The query that reads records of a partition from a place on. */
export function recordsQuery(partition: string, start: RecordsStart, text: string): string {
  return new URLSearchParams({ partition, offset: String(resetTarget(start, text)), count: String(RECORDS_SHOWN) }).toString();
}

/** A record as the list of messages shows it; its offset stands where others have their number. */
export function shownRecord(record: LogRecord, now: number): Message {
  return {
    position: record.offset,
    exchange: record.exchange,
    routing_key: record.key,
    redelivered: false,
    properties: { ...record.properties, headers: record.headers },
    payload: record.value,
    payload_bytes: record.encoding === 'base64' ? atob(record.value).length : new TextEncoder().encode(record.value).length,
    payload_encoding: record.encoding,
    age_ms: Math.max(0, now - record.timestamp),
  };
}

/** When a group's offsets move, in words. */
export function commitWords(group: Group): string {
  if (group.commit === 'delivery') return 'commits before delivering';
  if (group.commit === 'interval') return `commits every ${duration(group.commit_interval_ms)}`;
  return 'commits by ack';
}

/** Members that have no partition, because there are more of them than partitions. */
export function waitingMembers(group: Group): Group['members'] {
  return group.members.filter((one) => one.partitions.length === 0);
}

/** Whether a member is an AMQP connection that has a page of its own. */
export function isConnection(member: Group['members'][number]): boolean {
  return member.connection !== '' && !member.connection.startsWith('HTTP API');
}

/** What becomes of old records, in words. */
export function retentionWords(log: Log): string {
  const parts = [
    ...(log.cleanup_policy === 'compact' ? ['newest record of each key kept'] : []),
    ...(log.max_age_ms ? [`kept for ${duration(log.max_age_ms)}`] : []),
    ...(log.max_length_bytes ? [`at most ${bytes(log.max_length_bytes)}`] : []),
  ];
  return parts.length === 0 ? 'kept for ever' : parts.join(', ');
}

export function damageCount(partitions: readonly Partition[]): number {
  return partitions.reduce((sum, one) => sum + (one.damage?.length ?? 0), 0);
}

/** The log that has this queue as one of its partitions. */
export function logWithPartition(logs: readonly Log[], queue: string): Log | undefined {
  return logs.find((log) => log.partitioned && log.partitions.some((one) => one.queue === queue));
}

/** What deleting a log takes along, in words. */
export function lossWords(log: Log): string {
  const held = [
    plural(records(log.partitions), 'record'),
    ...(log.partitioned ? [plural(log.partitions.length, 'partition')] : []),
    ...(log.groups?.length ? [`the offsets of ${plural(log.groups.length, 'group')}`] : []),
  ];
  return `The log, its bindings, ${held.join(', ')} will be lost`.replace(/, ([^,]*)$/, ' and $1');
}
