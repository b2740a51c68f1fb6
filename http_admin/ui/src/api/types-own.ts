/** JSON shapes of the endpoints that only Leveret has. */

import type { Table } from './types';

export interface RouteStep {
  source: string;
  destination: string;
  destination_type: 'queue' | 'exchange';
  routing_key: string;
  arguments?: Table;
}

export interface RouteResult {
  queues: (string | { name: string })[];
  path: RouteStep[];
}

export interface Segment {
  base_offset: number;
  bytes?: number;
  records?: number;
}

export interface Partition {
  index: number;
  queue: string;
  first_offset: number;
  next_offset: number;
  segments: Segment[] | number;
  bytes: number;
  messages?: number;
  /** Batches that could not be read and were set aside. */
  damage?: unknown[];
}

export interface Log {
  name: string;
  vhost: string;
  /** Its records are in several queues, one for each partition. */
  partitioned?: boolean;
  partitions: Partition[];
  max_age_ms?: number | null;
  max_length_bytes?: number | null;
  cleanup_policy?: string;
  groups?: string[];
}

export interface LogRecord {
  partition: number;
  offset: number;
  timestamp: number;
  exchange: string;
  key: string;
  value: string;
  encoding: string;
  headers: Table;
  properties: Table;
}

export interface GroupPartition {
  partition: number;
  committed: number | null;
  end: number;
  lag: number;
}

export interface Group {
  group: string;
  members: { consumer_tag: string; connection: string; partitions: number[] }[];
  partitions: GroupPartition[];
  commit?: 'ack' | 'delivery' | 'interval';
  commit_interval_ms?: number | null;
}

export interface OffsetMove {
  partition: number;
  from: number | null;
  to: number;
}

export interface HistoryInfo {
  size_bytes: number;
  limit_bytes?: number;
  first_time: number | null;
  last_time: number | null;
  messages: number;
  events: number;
}

export interface TraceEvent {
  time_ms: number;
  event: string;
  queue?: string | null;
  consumer?: string | null;
  connection?: string | null;
  user?: string | null;
  redelivered?: boolean;
  detail?: unknown;
}

export interface Trace {
  message: Table;
  events: TraceEvent[];
}

/** A message that waits at a delayed exchange. */
export interface Scheduled {
  id: number;
  due_ms: number;
  exchange: string;
  routing_key: string;
  properties: Table;
  payload: string;
  payload_bytes: number;
  payload_encoding: string;
}

export interface Setting {
  key: string;
  value: unknown;
  /** As a settings file has it: 128KiB, 7d. */
  shown?: string;
  source: string;
  description: string;
}
