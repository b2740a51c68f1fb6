/** Shows the sign-in form or, to a signed-in user, the page of the current address. */

import { useEffect, useState } from 'preact/hooks';
import { ApiError, signOut, whenSignedOut, whoami } from './api/client';
import { restartStream } from './api/live';
import type { Session } from './api/types';
import { AppShell } from './components/app-shell';
import { ConfirmDialog } from './components/dialog';
import { ErrorNote, Loading } from './components/status-notes';
import { attempt, Toasts } from './components/toasts';
import { useStored } from './lib/hooks';
import { useRoute } from './lib/navigation';
import type { Route } from './lib/route';
import { applyTheme, storedTheme } from './lib/theme';
import { DefinitionsPage } from './pages/admin/definitions';
import { LimitsPage } from './pages/admin/limits';
import { PoliciesPage } from './pages/admin/policies';
import { SettingsPage } from './pages/admin/settings';
import { UserPage } from './pages/admin/user';
import { UsersPage } from './pages/admin/users';
import { VhostPage } from './pages/admin/vhost';
import { VhostsPage } from './pages/admin/vhosts';
import { ChannelPage } from './pages/channel';
import { ChannelsPage } from './pages/channels';
import { ConnectionPage } from './pages/connection';
import { ConnectionsPage } from './pages/connections';
import { ExchangePage } from './pages/exchange';
import { ExchangesPage } from './pages/exchanges';
import { HistoryPage } from './pages/history';
import { LogPage } from './pages/log';
import { LogsPage } from './pages/logs';
import { NewExchangePage } from './pages/new-exchange';
import { NewQueuePage } from './pages/new-queue';
import { NotFoundPage } from './pages/not-found';
import { OverviewPage } from './pages/overview';
import { QueuePage } from './pages/queue';
import { QueuesPage } from './pages/queues';
import { SignIn } from './pages/sign-in';
import { TopologyPage } from './pages/topology';

/** The page of one object has its name as key, so that it keeps no state of the previous object. */
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
      return <TopologyPage />;
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

const SIGNED_IN_KEY = 'leveret.signed-in';

/**
 * Whether a user has signed in with this browser, but not which one. On a first visit the form is
 * shown at once, without a request that would be refused.
 */
function wasSignedIn(): boolean {
  try {
    return localStorage.getItem(SIGNED_IN_KEY) === '1';
  } catch {
    return true; // Storage is forbidden here: the server is asked each time.
  }
}

function rememberSignedIn(isSignedIn: boolean): void {
  try {
    if (isSignedIn) localStorage.setItem(SIGNED_IN_KEY, '1');
    else localStorage.removeItem(SIGNED_IN_KEY);
  } catch {
    // Storage is forbidden here.
  }
}

type SignInState =
  | { state: 'checking' }
  | { state: 'signed-out'; note?: string }
  | { state: 'signed-in'; session: Session }
  | { state: 'unreachable'; error: unknown };

export function App() {
  const [signIn, setSignIn] = useState<SignInState>({ state: 'checking' });
  const route = useRoute();
  const [theme] = useStored('leveret.theme', 'system');
  const onSignedIn = (session: Session): void => {
    rememberSignedIn(true);
    restartStream();
    setSignIn({ state: 'signed-in', session });
  };
  const showForm = (note?: string): void => {
    rememberSignedIn(false);
    setSignIn({ state: 'signed-out', note });
  };
  const check = async (): Promise<void> => {
    if (!wasSignedIn()) {
      showForm();
      return;
    }
    try {
      onSignedIn(await whoami());
    } catch (error) {
      const isRefused = error instanceof ApiError && (error.status === 401 || error.status === 403);
      if (isRefused) showForm();
      else setSignIn({ state: 'unreachable', error });
    }
  };
  useEffect(() => {
    whenSignedOut(() => showForm('Your session has ended. Please sign in again.'));
    applyTheme(storedTheme(theme));
    void check();
  }, []);
  const endSession = async (): Promise<void> => {
    if (await attempt(signOut, '')) showForm('You have signed out.');
  };
  return (
    <>
      {signIn.state === 'checking' && <Loading />}
      {signIn.state === 'unreachable' && (
        <main class="signin">
          <ErrorNote error={signIn.error} retry={() => void check()} />
        </main>
      )}
      {signIn.state === 'signed-out' && <SignIn onSignedIn={onSignedIn} note={signIn.note} />}
      {signIn.state === 'signed-in' && (
        <AppShell
          session={signIn.session}
          section={route.path[0] ?? ''}
          onSignOut={() => void endSession()}
        >
          {page(route)}
        </AppShell>
      )}
      <Toasts />
      <ConfirmDialog />
    </>
  );
}
