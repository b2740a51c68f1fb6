/** The frame round every page: navigation, vhost choice, live state, theme, who is signed in. */

import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { setPaused, useLiveStatus, useOnce, type LiveStatus } from '../api/live';
import type { Overview, Session, Vhost } from '../api/types';
import { applyTheme, storedTheme, useStored, type Theme } from '../lib/hooks';
import { href } from '../lib/route';
import { isAdmin, mayMonitor, mayPolicy, ScopeContext } from '../lib/session';
import { byEvent } from './forms';
import { Icon, Mark, type IconName } from './Icon';

interface Entry {
  section: string;
  label: string;
  icon: IconName;
  also?: readonly string[];
}

const MAIN: readonly Entry[] = [
  { section: '', label: 'Overview', icon: 'overview' },
  { section: 'queues', label: 'Queues', icon: 'queues', also: ['new-queue'] },
  { section: 'exchanges', label: 'Exchanges', icon: 'exchanges', also: ['new-exchange', 'routing'] },
  { section: 'connections', label: 'Connections', icon: 'connections' },
  { section: 'channels', label: 'Channels', icon: 'channels' },
  { section: 'logs', label: 'Logs', icon: 'logs' },
  { section: 'history', label: 'History', icon: 'history' },
];

function adminEntries(session: Session): Entry[] {
  const admin = isAdmin(session);
  const entries: (Entry | false)[] = [
    admin && { section: 'users', label: 'Users', icon: 'users' },
    { section: 'vhosts', label: 'Virtual hosts', icon: 'vhosts' },
    mayPolicy(session) && { section: 'policies', label: 'Policies', icon: 'policies' },
    admin && { section: 'limits', label: 'Limits', icon: 'limits' },
    admin && { section: 'definitions', label: 'Definitions', icon: 'definitions' },
    mayMonitor(session) && { section: 'settings', label: 'Settings', icon: 'settings' },
  ];
  return entries.filter((entry): entry is Entry => entry !== false);
}

function NavList({ label, entries, section }: { label: string; entries: readonly Entry[]; section: string }) {
  return (
    <>
      {label !== '' && <h2 class="nav-head">{label}</h2>}
      <ul>
        {entries.map((entry) => {
          const here = entry.section === section || entry.also?.includes(section);
          return (
            <li key={entry.section}>
              <a href={entry.section === '' ? '#/' : href([entry.section])} aria-current={here ? 'page' : undefined}>
                <Icon name={entry.icon} /> {entry.label}
              </a>
            </li>
          );
        })}
      </ul>
    </>
  );
}

const LIVE_WORDS: Record<LiveStatus, string> = {
  live: 'Live',
  polling: 'Every 5 s',
  paused: 'Paused',
  offline: 'No answer',
};

function LiveButton() {
  const status = useLiveStatus();
  const paused = status === 'paused';
  return (
    <button class={`live live-${status}`} aria-pressed={paused} onClick={() => setPaused(!paused)} data-testid="live"
      title={paused ? 'Updates are paused. Click to go on.' : 'Updates by themselves. Click to pause.'}>
      <span class="live-dot" aria-hidden="true" />
      <span class="live-word">{LIVE_WORDS[status]}</span>
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
    <button class="icon-button" onClick={() => {
      setStored(NEXT_THEME[theme]);
      applyTheme(NEXT_THEME[theme]);
    }} data-testid="theme"
      aria-label={`Colours: ${theme === 'system' ? 'as the system' : theme}. Change to ${NEXT_THEME[theme] === 'system' ? 'as the system' : NEXT_THEME[theme]}`}
      title={`Colours: ${theme === 'system' ? 'as the system' : theme}`}>
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

export function Shell({ session, section, onSignOut, children }: ShellProps) {
  const [open, setOpen] = useState(false);
  const [stored, setVhost] = useStored('leveret.vhost', '');
  const vhosts = useOnce<Vhost[]>('/api/vhosts');
  const overview = useOnce<Overview>('/api/overview');
  const names = vhosts.data ?? (vhosts.error ? [{ name: '/' }] : []);
  const vhost = vhosts.data && !names.some((one) => one.name === stored) ? '' : stored;
  useEffect(() => setOpen(false), [location.hash]);
  useEffect(() => void vhosts.refresh(), [section]);
  const product = overview.data?.product_version ?? overview.data?.rabbitmq_version;
  return (
    <ScopeContext.Provider value={{ session, vhost, vhosts: names, overview: overview.data, setVhost }}>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById('main')?.focus();
      }}>Skip to content</a>
      <div class="shell">
        <header class="topbar">
          <button class="icon-button menu-button" aria-label="Menu" aria-expanded={open} aria-controls="nav" onClick={() => setOpen(!open)}>
            <Icon name={open ? 'close' : 'menu'} size={20} />
          </button>
          <a class="brand" href="#/" aria-label="Leveret, overview">
            <Mark /> <span>Leveret</span>
          </a>
          <label class="vhost-pick">
            <span>Virtual host</span>
            <select aria-label="Virtual host" value={vhost} onChange={byEvent(setVhost)} data-testid="vhost">
              <option value="">All</option>
              {names.map((one) => <option key={one.name} value={one.name}>{one.name}</option>)}
            </select>
          </label>
          <span class="spacer" />
          <LiveButton />
          <ThemeButton />
          <span class="who" title={`Signed in as ${session.name}`}>{session.name}</span>
          <button class="icon-button" aria-label="Sign out" title="Sign out" onClick={onSignOut} data-testid="sign-out">
            <Icon name="exit" />
          </button>
        </header>
        <nav id="nav" class={open ? 'nav nav-open' : 'nav'} aria-label="Main">
          <NavList label="" entries={MAIN} section={section} />
          <NavList label="Administration" entries={adminEntries(session)} section={section} />
          <p class="nav-foot">
            {overview.data?.cluster_name}
            {product && <span> {overview.data?.product_name ?? ''} {product}</span>}
          </p>
        </nav>
        <main id="main" tabIndex={-1}>{children}</main>
      </div>
    </ScopeContext.Provider>
  );
}
