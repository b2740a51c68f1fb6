/** The signed-in user and the selected virtual host, which every component gets by context. */

import { createContext } from 'preact';
import { useContext } from 'preact/hooks';
import type { Overview, Session, Vhost } from '../api/types';

export interface Scope {
  session: Session;
  /** The selected virtual host; empty for all that the user has access to. */
  vhost: string;
  vhosts: readonly Pick<Vhost, 'name' | 'default_queue_type'>[];
  overview: Overview | undefined;
  setVhost: (name: string) => void;
}

export const ScopeContext = createContext<Scope | null>(null);

export function useScope(): Scope {
  const scope = useContext(ScopeContext);
  if (scope === null) throw new Error('useScope needs a ScopeContext around it');
  return scope;
}

/** The virtual host for new objects: the selected one or, if all are selected, `/` or the first. */
export function defaultVhost(scope: Scope): string {
  if (scope.vhost !== '') return scope.vhost;
  const names = scope.vhosts.map((vhost) => vhost.name);
  return names.includes('/') ? '/' : (names[0] ?? '/');
}

export function isAdmin(session: Session): boolean {
  return session.tags.includes('administrator');
}

export function canMonitor(session: Session): boolean {
  return session.tags.some((tag) => tag === 'administrator' || tag === 'monitoring');
}

export function canSetPolicies(session: Session): boolean {
  return session.tags.some((tag) => tag === 'administrator' || tag === 'policymaker');
}
