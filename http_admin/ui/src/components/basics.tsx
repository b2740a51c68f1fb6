/** The small bricks of every page. */

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Table } from '../api/types';
import { value } from '../lib/format';
import { href } from '../lib/route';
import { useTitle } from '../lib/hooks';
import { Icon } from './Icon';

type Children = { children?: ComponentChildren };

interface HeadProps extends Children {
  title: string;
  /** Where this page hangs: label and address of the list it belongs to. */
  parent?: { label: string; to: string };
  sub?: ComponentChildren;
}

let isFirstPage = true;

/**
 * The heading takes the focus when the page changes, so that a screen reader starts there. The
 * first page leaves it where browsers put it: the first Tab then finds the way to skip the menu.
 */
export function PageHead({ title, parent, sub, children }: HeadProps) {
  const ref = useRef<HTMLHeadingElement>(null);
  useTitle(title);
  useEffect(() => {
    if (!isFirstPage) ref.current?.focus({ preventScroll: true });
    isFirstPage = false;
  }, []);
  return (
    <header class="page-head">
      <div class="page-title">
        {parent && (
          <a class="crumb" href={parent.to}>
            <Icon name="back" size={14} /> {parent.label}
          </a>
        )}
        <h1 ref={ref} tabIndex={-1}>
          {title}
        </h1>
        {sub && <p class="page-sub">{sub}</p>}
      </div>
      {children && <div class="actions">{children}</div>}
    </header>
  );
}

interface CardProps extends Children {
  title?: string;
  aside?: ComponentChildren;
  testid?: string;
  tight?: boolean;
}

export function Card({ title, aside, testid, tight = false, children }: CardProps) {
  return (
    <section class={tight ? 'card card-tight' : 'card'} data-testid={testid}>
      {title && (
        <div class="card-head">
          <h2>{title}</h2>
          {aside}
        </div>
      )}
      {children}
    </section>
  );
}

export type Tone = 'plain' | 'good' | 'warn' | 'bad' | 'info';

export function Badge({ tone = 'plain', title, children }: Children & { tone?: Tone; title?: string }) {
  return (
    <span class={`badge badge-${tone}`} title={title}>
      {children}
    </span>
  );
}

interface StatProps {
  label: string;
  value: string;
  note?: ComponentChildren;
  tone?: Tone;
  testid?: string;
}

export function Stat({ label, value: shown, note, tone = 'plain', testid }: StatProps) {
  return (
    <div class={`stat stat-${tone}`} data-testid={testid}>
      <dt>{label}</dt>
      <dd>
        <span class="stat-value">{shown}</span>
        {note && <span class="stat-note">{note}</span>}
      </dd>
    </div>
  );
}

export function Stats({ children }: Children) {
  return <dl class="stats">{children}</dl>;
}

/** Named values in two columns; what is unknown is left out. */
export function Facts({ items }: { items: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {items
        .filter(([, shown]) => shown !== undefined && shown !== null && shown !== '')
        .map(([label, shown]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>{shown}</dd>
          </div>
        ))}
    </dl>
  );
}

export function TableFacts({ table, none = 'None.' }: { table: Table | undefined; none?: string }) {
  const entries = Object.entries(table ?? {});
  if (entries.length === 0) return <p class="muted">{none}</p>;
  return <Facts items={entries.map(([key, of]) => [key, <code>{value(of)}</code>] as const)} />;
}

export interface Tab {
  id: string;
  label: string;
}

export function Tabs({ path, tabs, current, label }: { path: string[]; tabs: readonly Tab[]; current: string; label: string }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab, index) => (
        <a
          key={tab.id}
          href={href(path, { tab: index === 0 ? undefined : tab.id })}
          aria-current={tab.id === current ? 'page' : undefined}
          data-testid={`tab-${tab.id}`}
        >
          {tab.label}
        </a>
      ))}
    </nav>
  );
}

export function Choice({ label, options, current, onPick }: {
  label: string;
  options: readonly { id: string; label: string }[];
  current: string;
  onPick: (id: string) => void;
}) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {options.map((option) => (
        <button key={option.id} aria-pressed={option.id === current} onClick={() => onPick(option.id)}>
          {option.label}
        </button>
      ))}
    </div>
  );
}

export function Snippet({ code, label }: { code: string; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async (): Promise<void> => {
    await navigator.clipboard?.writeText(code).then(() => setCopied(true), () => undefined);
    window.setTimeout(() => setCopied(false), 2000);
  };
  return (
    <div class="snippet">
      <button class="button button-small" onClick={() => void copy()}>
        <Icon name={copied ? 'check' : 'copy'} size={14} /> {copied ? 'Copied' : 'Copy'}
      </button>
      <pre tabIndex={0} aria-label={label}>
        <code>{code}</code>
      </pre>
    </div>
  );
}

export function Empty({ title, children }: Children & { title: string }) {
  return (
    <div class="empty" data-testid="empty">
      <h3>{title}</h3>
      {children}
    </div>
  );
}

/** A share of a limit; the colour follows how close it is. */
export function Meter({ label, part, total, text }: { label: string; part: number; total: number; text: string }) {
  const share = total > 0 ? Math.min(1, part / total) : 0;
  const tone = share > 0.9 ? 'bad' : share > 0.7 ? 'warn' : 'good';
  return (
    <div class="meter-row">
      <span>{label}</span>
      <span class="num">{text}</span>
      <div class={`meter meter-${tone}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)} aria-valuetext={text}>
        <div style={{ width: `${share * 100}%` }} />
      </div>
    </div>
  );
}
