/**
 * One door to the HTTP API. Every call returns typed JSON or throws an ApiError whose message is a
 * sentence for people. The CSRF token lives here, in memory, and goes with every change.
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

export type Method = 'GET' | 'POST' | 'PUT' | 'DELETE';

let csrf = '';
let onSignedOut: () => void = () => undefined;

export function whenSignedOut(callback: () => void): void {
  onSignedOut = callback;
}

/** Builds `/api/...` from raw segments; each one is percent-encoded. */
export function apiPath(...segments: string[]): string {
  return `/api/${segments.map(encodeURIComponent).join('/')}`;
}

/** The default exchange's empty name cannot stand in a path. */
export function exchangeSegment(name: string): string {
  return name === '' ? 'amq.default' : name;
}

export async function call<T>(method: Method, path: string, body?: unknown, extra: HeadersInit = {}): Promise<T> {
  const headers = new Headers(extra);
  headers.set('Accept', 'application/json');
  headers.set('X-Requested-With', 'leveret-ui');
  if (method !== 'GET') headers.set('X-CSRF-Token', csrf);
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
    throw new ApiError(0, `The broker at ${location.host} does not answer. Is it running?`);
  }
  const parsed = await parse(response);
  if (response.ok) return parsed as T;
  if (response.status === 401 && path !== '/api/whoami' && path !== '/api/login') void checkSession();
  throw new ApiError(response.status, inWords(response.status, parsed));
}

/** RabbitMQ also answers 401 to "signed in but not allowed", so only whoami tells which it was. */
async function checkSession(): Promise<void> {
  try {
    await whoami();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) onSignedOut();
  }
}

async function parse(response: Response): Promise<unknown> {
  const text = await response.text();
  if (text === '') return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

const BY_STATUS: Record<number, string> = {
  400: 'The broker could not accept that request.',
  401: 'You are not allowed to do that.',
  403: 'You are not allowed to do that.',
  404: 'It is not there: it may have been deleted in the meantime.',
  405: 'This broker does not offer that.',
  409: 'That conflicts with what is already there.',
  413: 'That is larger than the broker accepts.',
  429: 'Too many attempts. Wait a moment and try again.',
  503: 'The broker is not ready to do that right now.',
};

export function inWords(status: number, body: unknown): string {
  const fallback = BY_STATUS[status] ?? `The broker answered with error ${status}.`;
  if (typeof body !== 'object' || body === null) return fallback;
  const reason = (body as { reason?: unknown }).reason;
  if (typeof reason !== 'string' || reason === '' || reason === 'Not Found') return fallback;
  const sentence = reason.charAt(0).toUpperCase() + reason.slice(1);
  return status === 401 || status === 403 ? `Not allowed: ${reason}` : sentence;
}

export const get = <T>(path: string): Promise<T> => call<T>('GET', path);
export const post = <T = unknown>(path: string, body: unknown = {}): Promise<T> => call<T>('POST', path, body);
export const put = (path: string, body: unknown = {}): Promise<unknown> => call('PUT', path, body);
export const remove = (path: string, headers: HeadersInit = {}): Promise<unknown> =>
  call('DELETE', path, undefined, headers);

function remember(session: Session): Session {
  csrf = session.csrf ?? '';
  return session;
}

export async function whoami(): Promise<Session> {
  return remember(await get<Session>('/api/whoami'));
}

export async function signIn(username: string, password: string): Promise<Session> {
  try {
    return remember(await post<Session>('/api/login', { username, password }));
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      throw new ApiError(error.status, 'That user name and password do not match.');
    }
    throw error;
  }
}

export async function signOut(): Promise<void> {
  await post('/api/logout');
  csrf = '';
}

export function tagsOf(holder: { tags?: string[] | string }): string[] {
  const tags = holder.tags ?? [];
  return Array.isArray(tags) ? tags : tags.split(',').map((tag) => tag.trim()).filter(Boolean);
}
