/**
 * Calls of the HTTP API. Every call returns typed JSON or throws an ApiError whose message can be
 * shown to the user. The CSRF token is kept in memory and sent with every change.
 */

import type { Session } from './types';

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
    this.name = 'ApiError';
  }

  get missing(): boolean {
    return this.status === 404;
  }
}

export function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export type Method = 'GET' | 'POST' | 'PUT' | 'DELETE';

let csrfToken = '';
let onSignedOut: () => void = () => undefined;

/** Calls back when the server says that the session has ended. */
export function whenSignedOut(callback: () => void): void {
  onSignedOut = callback;
}

/** Builds `/api/...` from raw segments; each one is percent-encoded. */
export function apiPath(...segments: string[]): string {
  return `/api/${segments.map(encodeURIComponent).join('/')}`;
}

/** The default exchange has an empty name, which some paths cannot have. */
export function exchangeSegment(name: string): string {
  return name === '' ? 'amq.default' : name;
}

export async function call<T>(
  method: Method,
  path: string,
  body?: unknown,
  extraHeaders: HeadersInit = {},
): Promise<T> {
  const headers = new Headers(extraHeaders);
  headers.set('Accept', 'application/json');
  headers.set('X-Requested-With', 'leveret-ui');
  if (method !== 'GET') headers.set('X-CSRF-Token', csrfToken);
  if (body !== undefined) headers.set('Content-Type', 'application/json');
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers,
      credentials: 'same-origin',
      cache: 'no-store',
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, `The broker at ${location.host} does not respond. Is it running?`);
  }
  const parsed = await parseBody(response);
  if (response.ok) return parsed as T;
  if (response.status === 401 && path !== '/api/whoami' && path !== '/api/login')
    void checkSession();
  throw new ApiError(response.status, errorMessage(response.status, parsed, path));
}

/** 401 also means that the user lacks a permission, as in RabbitMQ; only whoami tells them apart. */
async function checkSession(): Promise<void> {
  try {
    await whoami();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) onSignedOut();
  }
}

async function parseBody(response: Response): Promise<unknown> {
  const text = await response.text();
  if (text === '') return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

const MESSAGES: Record<number, string> = {
  400: 'The broker did not accept the request.',
  401: 'You do not have permission to do this.',
  403: 'You do not have permission to do this.',
  405: 'This broker does not support this request.',
  409: 'This conflicts with something that already exists.',
  413: 'This is larger than the broker accepts.',
  429: 'Too many attempts. Wait a moment and try again.',
  503: 'The broker cannot do this right now.',
};

/** What a sentence about a missing object calls it, by the first segment of its path. */
const OBJECT_NAMES: Record<string, string> = {
  queues: 'Queue',
  exchanges: 'Exchange',
  logs: 'Log',
  connections: 'Connection',
  channels: 'Channel',
  users: 'User',
  vhosts: 'Virtual host',
};
const IN_VHOST = new Set(['queues', 'exchanges', 'logs']);

/** `Queue "x" does not exist in "shop".` for the path of an object or of something inside it. */
function missingMessage(path: string): string {
  const [, , section = '', ...segments] = path.split(/[?]/, 1)[0]?.split('/') ?? [];
  const [first, second] = segments.map(decodeURIComponent);
  const object = OBJECT_NAMES[section];
  const isInVhost = IN_VHOST.has(section);
  const name = isInVhost ? second : first;
  if (object === undefined || name === undefined) return 'This does not exist.';
  return `${object} “${name}” does not exist${isInVhost ? ` in “${first}”` : ''}.`;
}

/** The reason that the server gives, or a sentence for the status. */
export function errorMessage(status: number, body: unknown, path: string): string {
  const fallback =
    status === 404
      ? missingMessage(path)
      : (MESSAGES[status] ?? `The broker responded with error ${status}.`);
  if (typeof body !== 'object' || body === null) return fallback;
  const reason = (body as { reason?: unknown }).reason;
  if (typeof reason !== 'string' || reason === '' || reason === 'Not Found') return fallback;
  const sentence = reason.charAt(0).toUpperCase() + reason.slice(1);
  return status === 401 || status === 403 ? `Not allowed: ${reason}` : sentence;
}

export const get = <T>(path: string): Promise<T> => call<T>('GET', path);
export const post = <T = unknown>(path: string, body: unknown = {}): Promise<T> =>
  call<T>('POST', path, body);
export const put = (path: string, body: unknown = {}): Promise<unknown> => call('PUT', path, body);
export const remove = (path: string, headers: HeadersInit = {}): Promise<unknown> =>
  call('DELETE', path, undefined, headers);

function keepToken(session: Session): Session {
  csrfToken = session.csrf ?? '';
  return session;
}

export async function whoami(): Promise<Session> {
  return keepToken(await get<Session>('/api/whoami'));
}

export async function signIn(username: string, password: string): Promise<Session> {
  try {
    return keepToken(await post<Session>('/api/login', { username, password }));
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      throw new ApiError(error.status, 'That user name and password do not match.');
    }
    throw error;
  }
}

export async function signOut(): Promise<void> {
  await post('/api/logout');
  csrfToken = '';
}
