/** The heading of a page, and the tabs below it. */

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { useTitle } from '../lib/hooks';
import { href } from '../lib/route';
import { Icon } from './icon';

interface PageHeadProps {
  title: string;
  /** Label and address of the list this page belongs to. */
  parent?: { label: string; to: string };
  sub?: ComponentChildren;
  /** Buttons at the right. */
  children?: ComponentChildren;
}

let isFirstPage = true;

/**
 * The heading takes the focus when the page changes, so that a screen reader starts there. On the
 * first page the focus stays where the browser puts it: the first Tab then reaches the skip link.
 */
export function PageHead({ title, parent, sub, children }: PageHeadProps) {
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

export interface Tab {
  id: string;
  label: string;
}

export function Tabs({
  path,
  tabs,
  current,
  label,
}: {
  path: string[];
  tabs: readonly Tab[];
  current: string;
  label: string;
}) {
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
