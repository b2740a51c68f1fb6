/** Small hooks shared by the pages: the current route, debounced text, the chosen vhost and theme. */

import { useEffect, useState } from 'preact/hooks';
import { parseRoute, type Route } from './route';

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  useEffect(() => {
    const update = (): void => setRoute(parseRoute(location.hash));
    window.addEventListener('hashchange', update);
    return () => window.removeEventListener('hashchange', update);
  }, []);
  return route;
}

export function go(hash: string): void {
  location.hash = hash;
}

/** Changes the address without a new history entry; used while typing a filter. */
export function replaceRoute(hash: string): void {
  history.replaceState(null, '', hash);
  window.dispatchEvent(new HashChangeEvent('hashchange'));
}

export function useDebounced<T>(value: T, ms = 250): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(value), ms);
    return () => window.clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** A remembered choice; storage may be forbidden, and then it lasts for the page only. */
export function useStored(key: string, initial: string): [string, (next: string) => void] {
  const [current, setCurrent] = useState(() => {
    try {
      return localStorage.getItem(key) ?? initial;
    } catch {
      return initial;
    }
  });
  const set = (next: string): void => {
    setCurrent(next);
    try {
      localStorage.setItem(key, next);
    } catch {
      // Nothing to do: the choice still holds until the page closes.
    }
  };
  return [current, set];
}

export type Theme = 'system' | 'light' | 'dark';

const dark = window.matchMedia('(prefers-color-scheme: dark)');
let chosen: Theme = 'system';

/** The system's wish is resolved here, so that the styles know two themes only. */
export function applyTheme(theme: Theme): void {
  chosen = theme;
  document.documentElement.dataset['theme'] = theme === 'system' ? (dark.matches ? 'dark' : 'light') : theme;
  window.dispatchEvent(new Event('themechange'));
}

dark.addEventListener('change', () => applyTheme(chosen));

export function storedTheme(stored: string): Theme {
  return stored === 'light' || stored === 'dark' ? stored : 'system';
}

/** Counts up whenever the colours change, for what is drawn on a canvas. */
export function useThemeVersion(): number {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const bump = (): void => setVersion((before) => before + 1);
    window.addEventListener('themechange', bump);
    return () => window.removeEventListener('themechange', bump);
  }, []);
  return version;
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · Leveret`;
  }, [title]);
}
