import { useState } from 'preact/hooks';
import { apiPath, get, post } from '../../api/client';
import type { Definitions, ImportReport, Table } from '../../api/types';
import { Card } from '../../components/card';
import { Form, SelectField } from '../../components/forms';
import { PageHead } from '../../components/page-head';
import { ErrorNote } from '../../components/status-notes';
import { toast } from '../../components/toasts';
import { plural } from '../../lib/format';
import { useScope } from '../../lib/session';

const SECTIONS: Record<string, [string, string?]> = {
  vhosts: ['virtual host'],
  users: ['user'],
  permissions: ['permission'],
  topic_permissions: ['topic permission'],
  policies: ['policy', 'policies'],
  parameters: ['parameter'],
  global_parameters: ['global parameter'],
  exchanges: ['exchange'],
  queues: ['queue'],
  bindings: ['binding'],
};

const ACCOUNTS = ['users', 'permissions', 'topic_permissions'];

function length(list: unknown): number {
  return Array.isArray(list) ? list.length : 0;
}

/** "3 queues, 2 exchanges": the content of a definitions file. Users may be in its `leveret` part. */
function summary(definitions: Definitions): string {
  const all = definitions as Table;
  const own = (all.leveret ?? {}) as Table;
  const parts = Object.entries(SECTIONS).flatMap(([key, [one, many]]) => {
    const total = length(all[key]) + (ACCOUNTS.includes(key) ? length(own[key]) : 0);
    return total > 0 ? [plural(total, one, many)] : [];
  });
  return parts.length === 0 ? 'nothing' : parts.join(', ');
}

function save(name: string, data: unknown): void {
  const url = URL.createObjectURL(
    new Blob([JSON.stringify(data, null, 2)], { type: 'application/json' }),
  );
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function useScopeOptions() {
  const { vhosts } = useScope();
  return [
    { id: '', label: 'Whole broker' },
    ...vhosts.map((vhost) => ({ id: vhost.name, label: `Virtual host ${vhost.name}` })),
  ];
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
    save(
      `leveret-definitions-${vhost === '' ? '' : `${vhost.replace(/[^\w.-]+/g, '_')}-`}${day}.json`,
      data,
    );
    toast(`Exported ${summary(data)}.`);
  };
  return (
    <Card title="Export">
      <p class="muted card-lead">
        One JSON file with users (passwords as hashes), virtual hosts, permissions, policies,
        queues, exchanges and bindings, but without messages.
      </p>
      <p class="muted card-lead">
        RabbitMQ can import it, except users whose passwords are hashed with Argon2id: recreate
        those users there.
      </p>
      <Form
        label="Export definitions"
        action="Download definitions"
        testid="export-definitions"
        onSubmit={run}
      >
        <SelectField label="Scope" value={vhost} onInput={setVhost} options={options} />
      </Form>
    </Card>
  );
}

function ImportCard() {
  const [vhost, setVhost] = useState('');
  const [loaded, setLoaded] = useState<{ name: string; data: Definitions } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [warnings, setWarnings] = useState<string[]>([]);
  const options = useScopeOptions();
  const read = async (file: File | undefined): Promise<void> => {
    setLoaded(null);
    setError(null);
    setWarnings([]);
    if (file === undefined) return;
    try {
      setLoaded({ name: file.name, data: JSON.parse(await file.text()) as Definitions });
    } catch {
      setError(new Error(`${file.name} is not a JSON file.`));
    }
  };
  const run = async (): Promise<void> => {
    if (error !== null) return; // The note about the file is still shown.
    if (loaded === null) throw new Error('Choose a file first.');
    const report = await post<ImportReport>(`${pathFor(vhost)}?warnings=true`, loaded.data);
    setWarnings(report.warnings);
    toast(`Imported ${summary(loaded.data)}.`);
    setLoaded(null);
  };
  return (
    <Card title="Import">
      <p class="muted card-lead">
        Adds the objects of the file, and replaces users, policies and permissions of the same name.
        Nothing is deleted. Files from RabbitMQ can be imported too.
      </p>
      <Form
        label="Import definitions"
        action="Import definitions"
        testid="import-definitions"
        onSubmit={run}
      >
        <div class="field">
          <label for="definitions-file">File</label>
          <input
            id="definitions-file"
            type="file"
            accept="application/json,.json"
            onChange={(event) => void read(event.currentTarget.files?.[0])}
          />
        </div>
        <SelectField label="Scope" value={vhost} onInput={setVhost} options={options} />
        {loaded !== null && (
          <p class="note" role="status" data-testid="import-summary">
            <span>
              {loaded.name} contains {summary(loaded.data)}.
            </span>
          </p>
        )}
        {warnings.length > 0 && (
          <div class="note" role="status" data-testid="import-warnings">
            <ul>
              {warnings.map((warning) => (
                <li key={warning}>{warning}.</li>
              ))}
            </ul>
          </div>
        )}
        {error !== null && <ErrorNote error={error} />}
      </Form>
    </Card>
  );
}

export function DefinitionsPage() {
  return (
    <>
      <PageHead
        title="Definitions"
        sub="Copy the configuration of this broker to another one, or keep it as a backup."
      />
      <div class="columns">
        <ExportCard />
        <ImportCard />
      </div>
    </>
  );
}
