/**
 * Live data. Components subscribe to API paths; one EventSource for the whole page carries all of
 * them. A hidden tab has no stream. If the stream fails, the same paths are polled instead.
 */

import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, errorMessage, errorText, get } from './client';

export type LiveStatus = 'live' | 'polling' | 'paused' | 'offline';

interface Update {
  data?: unknown;
  error?: ApiError;
}
type UpdateListener = (update: Update) => void;

const POLL_INTERVAL_MS = 5000;
const STREAM_RETRY_MS = 60_000;
const POLLING = 'polling';

// The page has one stream, so its state is kept in this module.
const listenersByPath = new Map<string, Set<UpdateListener>>();
const statusListeners = new Set<(status: LiveStatus) => void>();
let liveStatus: LiveStatus = 'live';
let eventSource: EventSource | null = null;
/** URL of the open stream, POLLING, or empty. */
let openConnection = '';
let pollTimer = 0;
let isSyncScheduled = false;
let isStreamRefused = false;
let isPaused = false;

function setLiveStatus(next: LiveStatus): void {
  if (next === liveStatus) return;
  liveStatus = next;
  for (const listener of statusListeners) listener(next);
}

function deliver(path: string, update: Update): void {
  for (const listener of listenersByPath.get(path) ?? []) listener(update);
}

function asApiError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError(0, errorText(error));
}

async function load(path: string): Promise<void> {
  try {
    deliver(path, { data: await get<unknown>(path) });
    if (liveStatus === 'offline') setLiveStatus(isStreamRefused ? 'polling' : 'live');
  } catch (problem) {
    const error = asApiError(problem);
    if (error.status === 0) setLiveStatus('offline');
    deliver(path, { error });
  }
}

interface StreamedView {
  path: string;
  status?: number;
  body: unknown;
}

function onView(event: MessageEvent<string>): void {
  const { path, status, body } = JSON.parse(event.data) as StreamedView;
  if (status !== undefined && status >= 400)
    deliver(path, { error: new ApiError(status, errorMessage(status, body, path)) });
  else deliver(path, { data: body });
  setLiveStatus('live');
}

function disconnect(): void {
  eventSource?.close();
  eventSource = null;
  openConnection = '';
  window.clearInterval(pollTimer);
  pollTimer = 0;
}

function startPolling(): void {
  disconnect();
  openConnection = POLLING;
  setLiveStatus('polling');
  pollTimer = window.setInterval(() => {
    for (const path of listenersByPath.keys()) void load(path);
  }, POLL_INTERVAL_MS);
}

/** Opens, replaces or closes the stream so that it carries exactly the subscribed paths. */
function syncStream(): void {
  isSyncScheduled = false;
  const paths = [...listenersByPath.keys()].sort();
  if (paths.length === 0 || isPaused || document.hidden) {
    disconnect();
    return;
  }
  if (isStreamRefused || typeof EventSource === 'undefined') {
    if (openConnection !== POLLING) startPolling();
    return;
  }
  const url = `/api/stream?${paths.map((path) => `view=${encodeURIComponent(path)}`).join('&')}`;
  if (url === openConnection) return;
  disconnect();
  openConnection = url;
  eventSource = new EventSource(url);
  eventSource.addEventListener('view', onView as EventListener);
  eventSource.onerror = onStreamError;
}

/** After most errors the browser reconnects by itself; after a refused request it does not. */
function onStreamError(): void {
  if (eventSource?.readyState === EventSource.CLOSED) {
    isStreamRefused = true;
    window.setTimeout(restartStream, STREAM_RETRY_MS);
    syncStream();
  } else setLiveStatus('offline');
}

/** Components subscribe one after the other; the stream is opened once, for all of them. */
function scheduleSync(): void {
  if (isSyncScheduled) return;
  isSyncScheduled = true;
  window.setTimeout(syncStream, 0);
}

document.addEventListener('visibilitychange', scheduleSync);

export function setPaused(paused: boolean): void {
  isPaused = paused;
  setLiveStatus(paused ? 'paused' : isStreamRefused ? 'polling' : 'live');
  syncStream();
}

/** Tries the stream again, also if it was refused before. */
export function restartStream(): void {
  isStreamRefused = false;
  disconnect();
  scheduleSync();
}

export function useLiveStatus(): LiveStatus {
  const [status, setStatus] = useState(liveStatus);
  useEffect(() => {
    statusListeners.add(setStatus);
    return () => void statusListeners.delete(setStatus);
  }, []);
  return status;
}

export interface Live<T> {
  data: T | undefined;
  error: ApiError | undefined;
  /** True until the current path has responded; until then `data` may be of the previous path. */
  loading: boolean;
  refresh: () => Promise<void>;
}

interface LoadedState<T> {
  path: string | null;
  data?: T;
  error?: ApiError;
}

/** Subscribes to one GET path. The previous data stays until the new path responds. */
export function useLive<T>(path: string | null): Live<T> {
  const [state, setState] = useState<LoadedState<T>>({ path: null });
  const currentPath = useRef(path);
  currentPath.current = path;
  useEffect(() => {
    if (path === null) return undefined;
    const listener: UpdateListener = ({ data, error }) =>
      setState((before) =>
        error
          ? { path, data: before.path === path ? before.data : undefined, error }
          : { path, data: data as T },
      );
    const listeners = listenersByPath.get(path) ?? new Set<UpdateListener>();
    listenersByPath.set(path, listeners.add(listener));
    void load(path);
    scheduleSync();
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0) listenersByPath.delete(path);
      scheduleSync();
    };
  }, [path]);
  return {
    data: state.data,
    error: state.path === path ? state.error : undefined,
    loading: state.path !== path,
    refresh: async () => {
      if (currentPath.current !== null) await load(currentPath.current);
    },
  };
}

/** Fetches one GET path once, for data that changes only when the user changes it. */
export function useOnce<T>(path: string | null): Live<T> {
  const [state, setState] = useState<LoadedState<T>>({ path: null });
  const currentPath = useRef(path);
  currentPath.current = path;
  const refresh = async (): Promise<void> => {
    if (path === null) return;
    const settle = (result: { data?: T; error?: ApiError }): void => {
      if (currentPath.current === path) setState({ path, ...result });
    };
    try {
      settle({ data: await get<T>(path) });
    } catch (error) {
      settle({ error: asApiError(error) });
    }
  };
  useEffect(() => void refresh(), [path]);
  const isLoaded = state.path === path;
  return {
    data: state.data,
    error: isLoaded ? state.error : undefined,
    loading: !isLoaded,
    refresh,
  };
}
