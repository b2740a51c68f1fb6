/** Signed in or not, and which page the address means. */

import { useEffect, useState } from 'preact/hooks';
import { ApiError, signOut, whenSignedOut, whoami } from './api/client';
import { resetLive } from './api/live';
import type { Session } from './api/types';
import { attempt, ConfirmHost, ErrorNote, Loading, Toasts } from './components/feedback';
import { Shell } from './components/Shell';
import { applyTheme, storedTheme, useRoute, useStored } from './lib/hooks';
import type { Route } from './lib/route';
import { SignIn } from './pages/signin';
import { OverviewPage } from './pages/overview';
import { ConnectionsPage } from './pages/connections';
import { ConnectionPage } from './pages/connection';
import { ChannelsPage } from './pages/channels';
import { ChannelPage } from './pages/channel';
import { ExchangesPage } from './pages/exchanges';
import { ExchangePage } from './pages/exchange';
import { NewExchangePage } from './pages/exchange-new';
import { RoutingPage } from './pages/routing';
import { QueuesPage } from './pages/queues';
import { QueuePage } from './pages/queue';
import { NewQueuePage } from './pages/queue-new';
import { LogsPage } from './pages/logs';
import { LogPage } from './pages/log';
import { HistoryPage } from './pages/history';
import { UsersPage } from './pages/admin/users';
import { UserPage } from './pages/admin/user';
import { VhostsPage } from './pages/admin/vhosts';
import { VhostPage } from './pages/admin/vhost';
import { PoliciesPage } from './pages/admin/policies';
import { LimitsPage } from './pages/admin/limits';
import { DefinitionsPage } from './pages/admin/definitions';
import { SettingsPage } from './pages/admin/settings';
import { NotFoundPage } from './pages/notfound';

/** Pages of one thing are keyed by its name, so that nothing of the former one stays. */
function page(route: Route) {
  const [section = '', first, second] = route.path;
  const key = route.path.join('\n');
  if (first !== undefined && second !== undefined) {
    if (section === 'queues') return <QueuePage key={key} vhost={first} name={second} />;
    if (section === 'exchanges') return <ExchangePage key={key} vhost={first} name={second} />;
    if (section === 'logs') return <LogPage key={key} vhost={first} name={second} />;
    return <NotFoundPage />;
  }
  if (first !== undefined) {
    if (section === 'connections') return <ConnectionPage key={key} name={first} />;
    if (section === 'channels') return <ChannelPage key={key} name={first} />;
    if (section === 'users') return <UserPage key={key} name={first} />;
    if (section === 'vhosts') return <VhostPage key={key} name={first} />;
    return <NotFoundPage />;
  }
  switch (section) {
    case '':
      return <OverviewPage />;
    case 'connections':
      return <ConnectionsPage />;
    case 'channels':
      return <ChannelsPage />;
    case 'exchanges':
      return <ExchangesPage />;
    case 'new-exchange':
      return <NewExchangePage />;
    case 'routing':
      return <RoutingPage />;
    case 'queues':
      return <QueuesPage />;
    case 'new-queue':
      return <NewQueuePage />;
    case 'logs':
      return <LogsPage />;
    case 'history':
      return <HistoryPage />;
    case 'users':
      return <UsersPage />;
    case 'vhosts':
      return <VhostsPage />;
    case 'policies':
      return <PoliciesPage />;
    case 'limits':
      return <LimitsPage />;
    case 'definitions':
      return <DefinitionsPage />;
    case 'settings':
      return <SettingsPage />;
    default:
      return <NotFoundPage />;
  }
}

/**
 * Remembers only that someone signed in here, never who or how: a first visit then shows the form
 * at once instead of asking the server and being refused.
 */
const marker = {
  get: (): boolean => {
    try {
      return localStorage.getItem('leveret.signed-in') === '1';
    } catch {
      return true;
    }
  },
  set: (on: boolean): void => {
    try {
      if (on) localStorage.setItem('leveret.signed-in', '1');
      else localStorage.removeItem('leveret.signed-in');
    } catch {
      // Storage is forbidden here: the server is asked each time.
    }
  },
};

type Gate = { state: 'asking' } | { state: 'out'; note?: string } | { state: 'in'; session: Session } | { state: 'down'; error: unknown };

export function App() {
  const [gate, setGate] = useState<Gate>({ state: 'asking' });
  const route = useRoute();
  const [theme] = useStored('leveret.theme', 'system');
  const enter = (session: Session): void => {
    marker.set(true);
    resetLive();
    setGate({ state: 'in', session });
  };
  const out = (note?: string): void => {
    marker.set(false);
    setGate({ state: 'out', note });
  };
  const check = async (): Promise<void> => {
    if (!marker.get()) return out();
    try {
      enter(await whoami());
    } catch (error) {
      const refused = error instanceof ApiError && (error.status === 401 || error.status === 403);
      if (refused) out();
      else setGate({ state: 'down', error });
    }
  };
  useEffect(() => {
    whenSignedOut(() => out('Your session has ended. Please sign in again.'));
    applyTheme(storedTheme(theme));
    void check();
  }, []);
  const leave = async (): Promise<void> => {
    if (await attempt(signOut, '')) out('You have signed out.');
  };
  return (
    <>
      {gate.state === 'asking' && <Loading />}
      {gate.state === 'down' && <main class="signin"><ErrorNote error={gate.error} retry={() => void check()} /></main>}
      {gate.state === 'out' && <SignIn onSignedIn={enter} note={gate.note} />}
      {gate.state === 'in' && (
        <Shell session={gate.session} section={route.path[0] ?? ''} onSignOut={() => void leave()}>
          {page(route)}
        </Shell>
      )}
      <Toasts />
      <ConfirmHost />
    </>
  );
}
