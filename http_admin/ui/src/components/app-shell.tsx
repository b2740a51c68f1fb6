/** The frame of every page: navigation, virtual host, live status, theme, user. */

import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { type LiveStatus, setPaused, useLiveStatus, useOnce } from '../api/live';
import type { Overview, Session, Vhost } from '../api/types';
import { useStored } from '../lib/hooks';
import { href } from '../lib/route';
import { canMonitor, canSetPolicies, isAdmin, ScopeContext } from '../lib/session';
import { applyTheme, storedTheme, type Theme } from '../lib/theme';
import { onSelect } from './forms';
import { Icon, type IconName, Logo } from './icon';

interface NavEntry {
  section: string;
  label: string;
  icon: IconName;
  /** Further sections for which this entry is the current one. */
  also?: readonly string[];
}

const MAIN: readonly NavEntry[] = [
  { section: '', label: 'Overview', icon: 'overview' },
  { section: 'queues', label: 'Queues', icon: 'queues', also: ['new-queue'] },
  {
    section: 'exchanges',
    label: 'Exchanges',
    icon: 'exchanges',
    also: ['new-exchange', 'routing'],
  },
  { section: 'connections', label: 'Connections', icon: 'connections' },
  { section: 'channels', label: 'Channels', icon: 'channels' },
  { section: 'logs', label: 'Logs', icon: 'logs' },
  { section: 'history', label: 'History', icon: 'history' },
];

function adminEntries(session: Session): NavEntry[] {
  const admin = isAdmin(session);
  const entries: (NavEntry | false)[] = [
    admin && { section: 'users', label: 'Users', icon: 'users' },
    { section: 'vhosts', label: 'Virtual hosts', icon: 'vhosts' },
    canSetPolicies(session) && { section: 'policies', label: 'Policies', icon: 'policies' },
    admin && { section: 'limits', label: 'Limits', icon: 'limits' },
    admin && { section: 'definitions', label: 'Definitions', icon: 'definitions' },
    canMonitor(session) && { section: 'settings', label: 'Settings', icon: 'settings' },
  ];
  return entries.filter((entry): entry is NavEntry => entry !== false);
}

function NavList({
  label,
  entries,
  section,
}: {
  label: string;
  entries: readonly NavEntry[];
  section: string;
}) {
  return (
    <>
      {label !== '' && <h2 class="nav-head">{label}</h2>}
      <ul>
        {entries.map((entry) => {
          const isCurrent = entry.section === section || entry.also?.includes(section);
          return (
            <li key={entry.section}>
              <a
                href={entry.section === '' ? '#/' : href([entry.section])}
                aria-current={isCurrent ? 'page' : undefined}
              >
                <Icon name={entry.icon} /> {entry.label}
              </a>
            </li>
          );
        })}
      </ul>
    </>
  );
}

const LIVE_LABELS: Record<LiveStatus, string> = {
  live: 'Live',
  polling: 'Polling every 5 s',
  paused: 'Paused',
  offline: 'Disconnected',
};

function LiveButton() {
  const status = useLiveStatus();
  const paused = status === 'paused';
  return (
    <button
      type="button"
      class={`live live-${status}`}
      aria-pressed={paused}
      onClick={() => setPaused(!paused)}
      data-testid="live"
      title={
        paused ? 'Updates are paused. Click to resume.' : 'Updates automatically. Click to pause.'
      }
    >
      <span class="live-dot" aria-hidden="true" />
      <span class="live-word">{LIVE_LABELS[status]}</span>
      <span class="visually-hidden">{paused ? '(resume updates)' : '(pause updates)'}</span>
    </button>
  );
}

const NEXT_THEME: Record<Theme, Theme> = { system: 'light', light: 'dark', dark: 'system' };
const THEME_ICON: Record<Theme, IconName> = { system: 'auto', light: 'sun', dark: 'moon' };

function ThemeButton() {
  const [stored, setStored] = useStored('leveret.theme', 'system');
  const theme = storedTheme(stored);
  return (
    <button
      type="button"
      class="icon-button"
      onClick={() => {
        setStored(NEXT_THEME[theme]);
        applyTheme(NEXT_THEME[theme]);
      }}
      data-testid="theme"
      aria-label={`Theme: ${theme}. Change to ${NEXT_THEME[theme]}`}
      title={`Theme: ${theme}`}
    >
      <Icon name={THEME_ICON[theme]} />
    </button>
  );
}

interface ShellProps {
  session: Session;
  section: string;
  onSignOut: () => void;
  children: ComponentChildren;
}

export function AppShell({ session, section, onSignOut, children }: ShellProps) {
  const [open, setOpen] = useState(false);
  const [stored, setVhost] = useStored('leveret.vhost', '');
  const vhosts = useOnce<Vhost[]>('/api/vhosts');
  const overview = useOnce<Overview>('/api/overview');
  const known = vhosts.data ?? (vhosts.error ? [{ name: '/', default_queue_type: 'classic' }] : []);
  const vhost = vhosts.data && !known.some((item) => item.name === stored) ? '' : stored;
  useEffect(() => setOpen(false), [location.hash]);
  useEffect(() => void vhosts.refresh(), [section]);
  return (
    <ScopeContext.Provider
      value={{ session, vhost, vhosts: known, overview: overview.data, setVhost }}
    >
      {/* biome-ignore lint/a11y/useValidAnchor: the part after # is the route, so the link moves the focus itself. */}
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById('main')?.focus();
        }}
      >
        Skip to content
      </a>
      <div class="shell">
        <header class="topbar">
          <button
            type="button"
            class="icon-button menu-button"
            aria-label="Menu"
            aria-expanded={open}
            aria-controls="nav"
            onClick={() => setOpen(!open)}
          >
            <Icon name={open ? 'close' : 'menu'} size={20} />
          </button>
          <a class="brand" href="#/" aria-label="Leveret, overview">
            <Logo /> <span>Leveret</span>
          </a>
          <label class="vhost-pick">
            <span>Virtual host</span>
            <select
              aria-label="Virtual host"
              value={vhost}
              onChange={onSelect(setVhost)}
              data-testid="vhost"
            >
              <option value="">All</option>
              {known.map((item) => (
                <option key={item.name} value={item.name}>
                  {item.name}
                </option>
              ))}
            </select>
          </label>
          <span class="spacer" />
          <LiveButton />
          <ThemeButton />
          <span class="user-name" title={`Signed in as ${session.name}`}>
            {session.name}
          </span>
          <button
            type="button"
            class="icon-button"
            aria-label="Sign out"
            title="Sign out"
            onClick={onSignOut}
            data-testid="sign-out"
          >
            <Icon name="exit" />
          </button>
        </header>
        <nav id="nav" class={open ? 'nav nav-open' : 'nav'} aria-label="Main">
          <NavList label="" entries={MAIN} section={section} />
          <NavList label="Administration" entries={adminEntries(session)} section={section} />
          <p class="nav-foot">
            {overview.data && (
              <>
                {overview.data.cluster_name}
                <span>
                  {' '}
                  {overview.data.product_name} {overview.data.product_version}
                </span>
              </>
            )}
          </p>
        </nav>
        <main id="main" tabIndex={-1}>
          {children}
        </main>
      </div>
    </ScopeContext.Provider>
  );
}
