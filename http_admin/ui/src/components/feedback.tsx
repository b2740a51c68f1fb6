/** What the dashboard says back: toasts, the one question before a loss, and errors in words. */

import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { ApiError } from '../api/client';
import { Icon } from './Icon';

interface Toast {
  id: number;
  kind: 'good' | 'bad';
  text: string;
}

let nextId = 1;
let showToast: (toast: Toast) => void = () => undefined;

export function toast(text: string, kind: Toast['kind'] = 'good'): void {
  showToast({ id: nextId++, kind, text });
}

export function words(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Runs a change: says so when it worked, says why when it did not. True when it worked. */
export async function attempt(action: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await action();
    if (done !== '') toast(done);
    return true;
  } catch (error) {
    toast(words(error), 'bad');
    return false;
  }
}

export function Toasts() {
  const [toasts, setToasts] = useState<Toast[]>([]);
  const drop = (id: number): void => setToasts((all) => all.filter((one) => one.id !== id));
  useEffect(() => {
    showToast = (one) => {
      setToasts((all) => [...all.slice(-3), one]);
      // An error stays until it is dismissed: it may take a while to read.
      if (one.kind === 'good') window.setTimeout(() => drop(one.id), 5000);
    };
  }, []);
  return (
    <div class="toasts" role="region" aria-label="Messages" aria-live="polite" data-testid="toasts">
      {toasts.map((one) => (
        <div key={one.id} class={`toast toast-${one.kind}`} role={one.kind === 'bad' ? 'alert' : 'status'}>
          <Icon name={one.kind === 'bad' ? 'warn' : 'check'} />
          <span>{one.text}</span>
          <button class="icon-button" aria-label="Dismiss message" onClick={() => drop(one.id)}>
            <Icon name="close" size={14} />
          </button>
        </div>
      ))}
    </div>
  );
}

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  testid?: string;
}

/** A native modal dialog: focus stays inside, Escape closes, focus returns where it was. */
export function Dialog({ title, onClose, children, testid }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      aria-label={title}
      data-testid={testid}
      onClose={onClose}
      onClick={(event) => event.target === ref.current && onClose()}
    >
      <div class="dialog-body">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

export interface Question {
  title: string;
  /** What will be lost, in words and numbers. */
  loss: string;
  action: string;
}

interface Asked extends Question {
  answer: (yes: boolean) => void;
}

let ask: (asked: Asked) => void = (asked) => asked.answer(false);

export function confirmLoss(question: Question): Promise<boolean> {
  return new Promise((answer) => ask({ ...question, answer }));
}

export function ConfirmHost() {
  const [asked, setAsked] = useState<Asked | null>(null);
  useEffect(() => {
    ask = setAsked;
  }, []);
  if (asked === null) return null;
  const reply = (yes: boolean): void => {
    setAsked(null);
    asked.answer(yes);
  };
  return (
    <Dialog title={asked.title} onClose={() => reply(false)} testid="confirm">
      <p class="loss">{asked.loss}</p>
      <div class="actions">
        <button class="button" autoFocus onClick={() => reply(false)}>
          Keep it
        </button>
        <button class="button button-danger" onClick={() => reply(true)} data-testid="confirm-yes">
          {asked.action}
        </button>
      </div>
    </Dialog>
  );
}

export function ErrorNote({ error, retry }: { error: unknown; retry?: () => void }) {
  return (
    <div class="note note-bad" role="alert" data-testid="error">
      <Icon name="warn" />
      <span>{words(error)}</span>
      {retry && (
        <button class="button button-small" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** For pages whose endpoint an older or other broker lacks. */
export function Unavailable({ what, error }: { what: string; error: ApiError }) {
  if (error.status !== 404 && error.status !== 405) return <ErrorNote error={error} />;
  return (
    <div class="note" data-testid="unavailable">
      <span>This broker does not offer {what}.</span>
    </div>
  );
}

export function Loading() {
  return (
    <p class="loading" role="status">
      Loading…
    </p>
  );
}
