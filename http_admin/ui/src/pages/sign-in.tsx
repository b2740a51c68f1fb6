import { useState } from 'preact/hooks';
import { signIn } from '../api/client';
import type { Session } from '../api/types';
import { Form, TextField } from '../components/forms';
import { Logo } from '../components/icon';
import { useTitle } from '../lib/hooks';

export function SignIn({
  onSignedIn,
  note,
}: {
  onSignedIn: (session: Session) => void;
  note?: string;
}) {
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  useTitle('Sign in');
  return (
    <main class="signin">
      <div class="signin-card">
        <Logo size={56} />
        <h1>Sign in to Leveret</h1>
        {note && (
          <p class="note" role="status">
            {note}
          </p>
        )}
        <Form
          label="Sign in"
          action="Sign in"
          testid="signin"
          onSubmit={async () => onSignedIn(await signIn(name, password))}
        >
          <TextField
            wide
            label="User name"
            name="username"
            autocomplete="username"
            value={name}
            onInput={setName}
            required
            autoFocus
          />
          <TextField
            wide
            label="Password"
            name="password"
            type="password"
            autocomplete="current-password"
            value={password}
            onInput={setPassword}
            required
          />
        </Form>
        {location.hostname === 'localhost' || location.hostname === '127.0.0.1' ? (
          <p class="muted">
            A new broker has the user <code>guest</code> with the password <code>guest</code>, which
            works from this machine only.
          </p>
        ) : null}
      </div>
    </main>
  );
}
