/** Short messages at the edge of the page, which tell whether an action worked. */

import { useEffect, useState } from 'preact/hooks';
import { errorText } from '../api/client';
import { Icon } from './icon';

interface Toast {
  id: number;
  kind: 'good' | 'bad';
  text: string;
}

const GOOD_TOAST_MS = 5000;
const MAX_TOASTS = 4;
let nextId = 1;
let showToast: (toast: Toast) => void = () => undefined;

export function toast(text: string, kind: Toast['kind'] = 'good'): void {
  showToast({ id: nextId++, kind, text });
}

/** Runs an action and shows a toast: `done` if it worked, else the error. True if it worked. */
export async function attempt(action: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await action();
    if (done !== '') toast(done);
    return true;
  } catch (error) {
    toast(errorText(error), 'bad');
    return false;
  }
}

export function Toasts() {
  const [toasts, setToasts] = useState<Toast[]>([]);
  const dismiss = (id: number): void => setToasts((all) => all.filter((shown) => shown.id !== id));
  useEffect(() => {
    showToast = (added) => {
      setToasts((all) => [...all.slice(1 - MAX_TOASTS), added]);
      // An error stays until it is dismissed, because it can take a while to read.
      if (added.kind === 'good') window.setTimeout(() => dismiss(added.id), GOOD_TOAST_MS);
    };
  }, []);
  return (
    <section class="toasts" aria-label="Messages" aria-live="polite" data-testid="toasts">
      {toasts.map((shown) => (
        <div
          key={shown.id}
          class={`toast toast-${shown.kind}`}
          role={shown.kind === 'bad' ? 'alert' : 'status'}
        >
          <Icon name={shown.kind === 'bad' ? 'warn' : 'check'} />
          <span>{shown.text}</span>
          <button
            type="button"
            class="icon-button"
            aria-label="Dismiss message"
            onClick={() => dismiss(shown.id)}
          >
            <Icon name="close" size={14} />
          </button>
        </div>
      ))}
    </section>
  );
}
