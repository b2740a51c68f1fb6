/** The log that a queue of type stream is, or is a partition of. */

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

/** Reading all logs is slow, so it is done only for queues that are named like a partition. */
export function useLogOfQueue(vhost: string, name: string, queue: Queue | undefined): LogOfQueue {
  const isLog = queue?.type === 'stream';
  const mayBePartition =
    isLog && /-\d+$/.test(name) && queue.arguments['x-partitions'] === undefined;
  const all = useOnce<Log[]>(mayBePartition ? apiPath('logs', vhost) : null);
  const parent = logWithPartition((mayBePartition && all.data) || [], name);
  const isKnown = queue !== undefined && (!mayBePartition || !all.loading);
  const log = useLive<Log>(isLog && isKnown ? apiPath('logs', vhost, parent?.name ?? name) : null);
  return { log: isKnown ? log.data : undefined, isPartition: parent !== undefined, isKnown };
}
