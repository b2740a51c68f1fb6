/** The colour theme: light, dark, or the one of the system. */

import { useEffect, useState } from 'preact/hooks';

export type Theme = 'system' | 'light' | 'dark';

const prefersDark = window.matchMedia('(prefers-color-scheme: dark)');
let appliedTheme: Theme = 'system';

/** `system` is resolved here, so that the styles need only two themes. */
export function applyTheme(theme: Theme): void {
  appliedTheme = theme;
  document.documentElement.dataset.theme =
    theme === 'system' ? (prefersDark.matches ? 'dark' : 'light') : theme;
  window.dispatchEvent(new Event('themechange'));
}

prefersDark.addEventListener('change', () => applyTheme(appliedTheme));

export function storedTheme(stored: string): Theme {
  return stored === 'light' || stored === 'dark' ? stored : 'system';
}

/** A number that changes with the colours, for components that draw on a canvas. */
export function useThemeVersion(): number {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const increment = (): void => setVersion((before) => before + 1);
    window.addEventListener('themechange', increment);
    return () => window.removeEventListener('themechange', increment);
  }, []);
  return version;
}
