import { useState } from 'preact/hooks';
import { apiPath, get, post } from '../../api/client';
import type { Definitions } from '../../api/types';
import { Card, PageHead } from '../../components/basics';
import { ErrorNote, toast } from '../../components/feedback';
import { Form, SelectField } from '../../components/forms';
import { plural } from '../../lib/format';
import { useScope } from '../../lib/session';

const PARTS: Record<string, [string, string?]> = {
  vhosts: ['virtual host'], users: ['user'], permissions: ['permission'], topic_permissions: ['topic permission'],
  policies: ['policy', 'policies'], parameters: ['parameter'], global_parameters: ['global parameter'],
  exchanges: ['exchange'], queues: ['queue'], bindings: ['binding'],
};

const ACCOUNTS = ['users', 'permissions', 'topic_permissions'];

function length(list: unknown): number {
  return Array.isArray(list) ? list.length : 0;
}

/** "3 queues, 2 exchanges": what a definitions file holds. Users may be in the part for Leveret alone. */
function summary(definitions: Definitions): string {
  const own = (definitions.leveret ?? {}) as Record<string, unknown>;
  const parts = Object.entries(PARTS).flatMap(([key, [one, many]]) => {
    const total = length(definitions[key]) + (ACCOUNTS.includes(key) ? length(own[key]) : 0);
    return total > 0 ? [plural(total, one, many)] : [];
  });
  return parts.length === 0 ? 'nothing' : parts.join(', ');
}

function save(name: string, data: unknown): void {
  const url = URL.createObjectURL(new Blob([JSON.stringify(data, null, 2)], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function useScopeOptions() {
  const { vhosts } = useScope();
  return [{ id: '', label: 'the whole broker' }, ...vhosts.map((one) => ({ id: one.name, label: `virtual host ${one.name}` }))];
}

function pathFor(vhost: string): string {
  return vhost === '' ? '/api/definitions' : apiPath('definitions', vhost);
}

function ExportCard() {
  const [vhost, setVhost] = useState('');
  const options = useScopeOptions();
  const run = async (): Promise<void> => {
    const data = await get<Definitions>(pathFor(vhost));
    const day = new Date().toISOString().slice(0, 10);
    save(`leveret-definitions-${vhost === '' ? '' : `${vhost.replace(/[^\w.-]+/g, '_')}-`}${day}.json`, data);
    toast(`Saved: ${summary(data)}.`);
  };
  return (
    <Card title="Export">
      <p class="muted card-lead">One JSON file with users (passwords as hashes), virtual hosts, permissions, policies, queues, exchanges and bindings. Messages are not part of it.</p>
      <p class="muted card-lead">RabbitMQ reads it, too, but for users whose password is kept as Argon2id, which it could not check: make those there anew.</p>
      <Form label="Export definitions" action="Download definitions" testid="export-definitions" onSubmit={run}>
        <SelectField label="Of" value={vhost} onInput={setVhost} options={options} />
      </Form>
    </Card>
  );
}

function ImportCard() {
  const [vhost, setVhost] = useState('');
  const [loaded, setLoaded] = useState<{ name: string; data: Definitions } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const options = useScopeOptions();
  const read = async (file: File | undefined): Promise<void> => {
    setLoaded(null);
    setError(null);
    if (file === undefined) return;
    try {
      setLoaded({ name: file.name, data: JSON.parse(await file.text()) as Definitions });
    } catch {
      setError(new Error(`${file.name} is not a JSON file.`));
    }
  };
  const run = async (): Promise<void> => {
    if (error !== null) return; // the note about the file stands there already
    if (loaded === null) throw new Error('Choose a file first.');
    await post(pathFor(vhost), loaded.data);
    toast(`Imported: ${summary(loaded.data)}.`);
    setLoaded(null);
  };
  return (
    <Card title="Import">
      <p class="muted card-lead">Adds to what is there and replaces users, policies and permissions of the same name; nothing is deleted. Files from RabbitMQ work.</p>
      <Form label="Import definitions" action="Import definitions" testid="import-definitions" onSubmit={run}>
        <div class="field">
          <label for="definitions-file">File</label>
          <input id="definitions-file" type="file" accept="application/json,.json" onChange={(event) => void read(event.currentTarget.files?.[0])} />
        </div>
        <SelectField label="Into" value={vhost} onInput={setVhost} options={options} />
        {loaded !== null && <p class="note" role="status" data-testid="import-summary"><span>{loaded.name} holds {summary(loaded.data)}.</span></p>}
        {error !== null && <ErrorNote error={error} />}
      </Form>
    </Card>
  );
}

export function DefinitionsPage() {
  return (
    <>
      <PageHead title="Definitions" sub="Move the set-up of this broker to another one, or keep it as a backup." />
      <div class="columns">
        <ExportCard />
        <ImportCard />
      </div>
    </>
  );
}
