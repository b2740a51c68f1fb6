/** The current route, and how to change it. */

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

export function navigate(hash: string): void {
  location.hash = hash;
}

/** Changes the address without a new history entry; used while a filter is typed. */
export function replaceRoute(hash: string): void {
  history.replaceState(null, '', hash);
  window.dispatchEvent(new HashChangeEvent('hashchange'));
}
