/** Who is signed in, and which vhost the pages look at; given to every component by context. */

import { createContext } from 'preact';
import { useContext } from 'preact/hooks';
import type { Overview, Session, Vhost } from '../api/types';
import { tagsOf } from '../api/client';

export interface Scope {
  session: Session;
  /** '' means all vhosts the user may see. */
  vhost: string;
  vhosts: Vhost[];
  overview: Overview | undefined;
  setVhost: (name: string) => void;
}

export const ScopeContext = createContext<Scope | null>(null);

export function useScope(): Scope {
  const scope = useContext(ScopeContext);
  if (scope === null) throw new Error('no scope outside the signed-in part');
  return scope;
}

/** The vhost that a new thing goes to when the pages look at all of them. */
export function homeVhost(scope: Scope): string {
  if (scope.vhost !== '') return scope.vhost;
  const names = scope.vhosts.map((vhost) => vhost.name);
  return names.includes('/') ? '/' : (names[0] ?? '/');
}

export function isAdmin(session: Session): boolean {
  return tagsOf(session).includes('administrator');
}

export function mayMonitor(session: Session): boolean {
  return tagsOf(session).some((tag) => tag === 'administrator' || tag === 'monitoring');
}

export function mayPolicy(session: Session): boolean {
  return tagsOf(session).some((tag) => tag === 'administrator' || tag === 'policymaker');
}
