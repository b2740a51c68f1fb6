/**
 * Live data: components name the API paths they show; one EventSource per page carries them all.
 * A hidden tab holds no stream. Where the stream fails, the same paths are polled instead.
 */

import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, get, inWords } from './client';

export type LiveStatus = 'live' | 'polling' | 'paused' | 'offline';

interface Update {
  data?: unknown;
  error?: ApiError;
}
type Listener = (update: Update) => void;

const POLL_MS = 5000;
const RETRY_STREAM_MS = 60_000;
const listeners = new Map<string, Set<Listener>>();
const statusListeners = new Set<(status: LiveStatus) => void>();
let source: EventSource | null = null;
let opened = '';
let timer = 0;
let planned = false;
let streamBroken = false;
let paused = false;
let status: LiveStatus = 'live';

function announce(next: LiveStatus): void {
  if (next === status) return;
  status = next;
  statusListeners.forEach((listener) => listener(next));
}

function deliver(path: string, update: Update): void {
  listeners.get(path)?.forEach((listener) => listener(update));
}

async function load(path: string): Promise<void> {
  try {
    deliver(path, { data: await get<unknown>(path) });
    if (status === 'offline') announce(streamBroken ? 'polling' : 'live');
  } catch (error) {
    const known = error instanceof ApiError ? error : new ApiError(0, String(error));
    if (known.status === 0) announce('offline');
    deliver(path, { error: known });
  }
}

function onView(event: MessageEvent<string>): void {
  const { path, status: code, body } = JSON.parse(event.data) as { path: string; status?: number; body: unknown };
  if (code !== undefined && code >= 400) deliver(path, { error: new ApiError(code, inWords(code, body)) });
  else deliver(path, { data: body });
  announce('live');
}

function stop(): void {
  source?.close();
  source = null;
  opened = '';
  window.clearInterval(timer);
  timer = 0;
}

function poll(): void {
  stop();
  opened = 'polling';
  announce('polling');
  timer = window.setInterval(() => [...listeners.keys()].forEach((path) => void load(path)), POLL_MS);
}

/** Brings the stream in line with the paths wanted now. */
function sync(): void {
  planned = false;
  const paths = [...listeners.keys()].sort();
  if (paths.length === 0 || paused || document.hidden) return stop();
  if (streamBroken || typeof EventSource === 'undefined') {
    if (opened !== 'polling') poll();
    return;
  }
  const url = `/api/stream?${paths.map((path) => `view=${encodeURIComponent(path)}`).join('&')}`;
  if (url === opened) return;
  stop();
  opened = url;
  source = new EventSource(url);
  source.addEventListener('view', onView as EventListener);
  source.onerror = () => {
    // While the browser reconnects by itself there is nothing to do; a refused stream is over.
    if (source?.readyState === EventSource.CLOSED) {
      streamBroken = true;
      window.setTimeout(resetLive, RETRY_STREAM_MS);
      sync();
    } else announce('offline');
  };
}

function plan(): void {
  if (planned) return;
  planned = true;
  window.setTimeout(sync, 0);
}

document.addEventListener('visibilitychange', plan);

export function setPaused(next: boolean): void {
  paused = next;
  announce(next ? 'paused' : streamBroken ? 'polling' : 'live');
  sync();
}

/** Tries the stream again: one refused then may be granted now. */
export function resetLive(): void {
  streamBroken = false;
  stop();
  plan();
}

export function useLiveStatus(): LiveStatus {
  const [now, setNow] = useState(status);
  useEffect(() => {
    statusListeners.add(setNow);
    return () => void statusListeners.delete(setNow);
  }, []);
  return now;
}

export interface Live<T> {
  data: T | undefined;
  error: ApiError | undefined;
  /** True until the present path has answered; `data` may still be the former path's. */
  loading: boolean;
  refresh: () => Promise<void>;
}

/** Subscribes to one GET path. The former data stays until the new path answers. */
export function useLive<T>(path: string | null): Live<T> {
  const [state, setState] = useState<{ path: string | null; data?: T; error?: ApiError }>({ path: null });
  const current = useRef(path);
  current.current = path;
  useEffect(() => {
    if (path === null) return undefined;
    const listener: Listener = ({ data, error }) =>
      setState((before) => (error ? { path, data: before.path === path ? before.data : undefined, error } : { path, data: data as T }));
    const set = listeners.get(path) ?? new Set<Listener>();
    listeners.set(path, set.add(listener));
    void load(path);
    plan();
    return () => {
      set.delete(listener);
      if (set.size === 0) listeners.delete(path);
      plan();
    };
  }, [path]);
  return {
    data: state.data,
    error: state.path === path ? state.error : undefined,
    loading: state.path !== path,
    refresh: async () => {
      if (current.current !== null) await load(current.current);
    },
  };
}

/** One fetch, no stream: for data that changes only by hand. */
export function useOnce<T>(path: string | null): Live<T> {
  const [state, setState] = useState<{ path: string | null; data?: T; error?: ApiError }>({ path: null });
  const current = useRef(path);
  current.current = path;
  const run = async (): Promise<void> => {
    if (path === null) return;
    const settle = (result: { data?: T; error?: ApiError }): void => {
      if (current.current === path) setState({ path, ...result });
    };
    try {
      settle({ data: await get<T>(path) });
    } catch (error) {
      settle({ error: error instanceof ApiError ? error : new ApiError(0, String(error)) });
    }
  };
  useEffect(() => void run(), [path]);
  const known = state.path === path;
  return { data: state.data, error: known ? state.error : undefined, loading: !known, refresh: run };
}
