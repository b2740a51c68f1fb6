/** Small hooks shared by the pages. */

import { useEffect, useState } from 'preact/hooks';

/** The value once it has not changed for a while. */
export function useDebounced<T>(value: T, ms = 250): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(value), ms);
    return () => window.clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** A choice kept in local storage. If storage is forbidden, it lasts until the page closes. */
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
      // Storage is forbidden; the state above still has the choice.
    }
  };
  return [current, set];
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · Leveret`;
  }, [title]);
}
