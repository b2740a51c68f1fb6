/** A queue of the type stream is a log, or one partition of a log that has several. */

import { apiPath } from '../api/client';
import { useLive, useOnce } from '../api/live';
import type { Log, Queue } from '../api/types';
import { logWithPartition } from './logs';

export interface LogOfQueue {
  log: Log | undefined;
  isPartition: boolean;
  /** False until it is known whether the queue is a partition. */
  isKnown: boolean;
}

/** Only a queue named as partitions are is looked for in the logs: reading them all takes its time. */
export function useLogOf(vhost: string, name: string, queue: Queue | undefined): LogOfQueue {
  const isLog = queue?.type === 'stream';
  const isSuspect = isLog && /-\d+$/.test(name) && queue.arguments['x-partitions'] === undefined;
  const all = useOnce<Log[]>(isSuspect ? apiPath('logs', vhost) : null);
  const whole = logWithPartition((isSuspect && all.data) || [], name);
  const isKnown = queue !== undefined && (!isSuspect || !all.loading);
  const log = useLive<Log>(isLog && isKnown ? apiPath('logs', vhost, whole?.name ?? name) : null);
  return { log: isKnown ? log.data : undefined, isPartition: whole !== undefined, isKnown };
}
