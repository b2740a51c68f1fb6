/** Modal dialogs, and the confirmation before anything is lost. */

import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  testid?: string;
}

/** A native modal dialog keeps the focus inside and closes on Escape; the focus returns after it. */
export function Dialog({ title, onClose, children, testid }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const dialog = ref.current;
    const focusedBefore = document.activeElement;
    dialog?.showModal();
    return () => {
      if (focusedBefore instanceof HTMLElement && focusedBefore.isConnected) focusedBefore.focus();
    };
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape closes a native dialog by itself.
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
  /** What will be lost, with numbers. */
  loss: string;
  /** Label of the button that goes ahead. */
  action: string;
}

interface PendingQuestion extends Question {
  answer: (confirmed: boolean) => void;
}

let ask: (question: PendingQuestion) => void = (question) => question.answer(false);

/** Asks the user; true if the loss was confirmed. */
export function confirmLoss(question: Question): Promise<boolean> {
  return new Promise((answer) => ask({ ...question, answer }));
}

/** Shows the questions of `confirmLoss`; the page has one. */
export function ConfirmDialog() {
  const [question, setQuestion] = useState<PendingQuestion | null>(null);
  useEffect(() => {
    ask = setQuestion;
  }, []);
  if (question === null) return null;
  const reply = (confirmed: boolean): void => {
    setQuestion(null);
    question.answer(confirmed);
  };
  return (
    <Dialog title={question.title} onClose={() => reply(false)} testid="confirm">
      <p class="loss">{question.loss}</p>
      <div class="actions">
        {/* biome-ignore lint/a11y/noAutofocus: a dialog has to take the focus; this button is harmless. */}
        <button type="button" class="button" autoFocus onClick={() => reply(false)}>
          Cancel
        </button>
        <button
          type="button"
          class="button button-danger"
          onClick={() => reply(true)}
          data-testid="confirm-yes"
        >
          {question.action}
        </button>
      </div>
    </Dialog>
  );
}
