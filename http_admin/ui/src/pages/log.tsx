import { useState } from 'preact/hooks';
import { ApiError, apiPath, remove } from '../api/client';
import { useLive } from '../api/live';
import type { Group, GroupPartition, Log } from '../api/types';
import { Badge, Card, Empty, PageHead, Stat, Stats } from '../components/basics';
import { DataTable, type Column } from '../components/DataTable';
import { attempt, confirmLoss, ErrorNote, Loading, Unavailable } from '../components/feedback';
import { byEvent } from '../components/forms';
import { Lanes } from '../components/Lanes';
import { ConnectionLink } from '../components/links';
import { OffsetReset } from '../components/OffsetReset';
import { Records } from '../components/Records';
import { bytes, count, plural } from '../lib/format';
import { commitWords, damageCount, isConnection, records, retentionWords, totalLag, waitingMembers } from '../lib/logs';

function holder(group: Group, partition: number) {
  const member = group.members.find((one) => one.partitions.includes(partition));
  if (member === undefined) return <Badge tone="warn">nobody</Badge>;
  return <MemberName member={member} />;
}

function MemberName({ member }: { member: Group['members'][number] }) {
  return (
    <>
      <code>{member.consumer_tag}</code>{' '}
      <span class="under minor">{isConnection(member) ? <ConnectionLink name={member.connection} /> : 'over HTTP'}</span>
    </>
  );
}

function groupColumns(group: Group): Column<GroupPartition>[] {
  return [
    { id: 'partition', title: 'Partition', render: (one) => one.partition },
    { id: 'committed', title: 'Committed', numeric: true, minor: true, render: (one) => (one.committed === null ? 'not yet' : count(one.committed)) },
    { id: 'end', title: 'End', numeric: true, minor: true, render: (one) => count(one.end) },
    { id: 'lag', title: 'Lag', numeric: true, render: (one) => <LagCell lag={one.lag} most={Math.max(1, ...group.partitions.map((other) => other.lag))} /> },
    { id: 'member', title: 'Read by', render: (one) => holder(group, one.partition) },
  ];
}

function LagCell({ lag, most }: { lag: number; most: number }) {
  return (
    <span class="lag">
      <span class="lag-bar" aria-hidden="true"><span style={{ width: `${(lag / most) * 100}%` }} /></span>
      {count(lag)}
    </span>
  );
}

interface GroupCardProps {
  group: Group;
  onReset: () => void;
  onForget: () => void;
}

function GroupCard({ group, onReset, onForget }: GroupCardProps) {
  const waiting = waitingMembers(group);
  const members = `${plural(group.members.length, 'member')}${waiting.length === 0 ? '' : `, ${waiting.length} waiting`}`;
  const buttons = (
    <div class="actions">
      {group.members.length === 0 && <button class="button button-small" onClick={onForget} aria-label={`Forget ${group.group}`}>Forget…</button>}
      <button class="button button-small" onClick={onReset} aria-label={`Move offsets of ${group.group}`}>Move offsets…</button>
    </div>
  );
  return (
    <Card title={group.group} testid="group" aside={buttons}>
      <p class="card-lead muted">{members} · {plural(totalLag(group), 'record')} behind · {commitWords(group)}</p>
      <DataTable label={`Partitions of group ${group.group}`} columns={groupColumns(group)} rows={group.partitions} rowKey={(one) => String(one.partition)} />
      {waiting.length > 0 && (
        <div class="waiting">
          <h3>Waiting for a partition</h3>
          <ul>{waiting.map((one) => <li key={one.consumer_tag}><MemberName member={one} /></li>)}</ul>
        </div>
      )}
    </Card>
  );
}

export function LogPage({ vhost, name }: { vhost: string; name: string }) {
  const { data: log, error } = useLive<Log>(apiPath('logs', vhost, name));
  const groups = useLive<Group[]>(apiPath('logs', vhost, name, 'groups'));
  const [marked, setMarked] = useState('');
  const [resetting, setResetting] = useState<Group | null>(null);
  const parent = { label: 'Logs', to: '#/logs' };
  if (log === undefined) {
    const isMissing = error instanceof ApiError && error.status === 404;
    return (
      <>
        <PageHead title={name} parent={parent} />
        {isMissing ? <p>There is no log of this name in {vhost}.</p> : error ? <Unavailable what="logs" error={error} /> : <Loading />}
      </>
    );
  }
  const forget = async (group: Group): Promise<void> => {
    const sure = await confirmLoss({ title: `Forget ${group.group}?`, loss: `Its offsets are gone then: a member that comes back begins anew. The records of ${name} stay.`, action: 'Forget group' });
    if (sure && (await attempt(() => remove(apiPath('logs', vhost, name, 'groups', group.group)), `Group ${group.group} is forgotten.`))) void groups.refresh();
  };
  const all = groups.data ?? [];
  const shown = all.find((one) => one.group === marked) ?? all[0];
  return (
    <>
      <PageHead title={name} parent={parent} sub={`log in ${vhost}, ${retentionWords(log)}`} />
      <Stats>
        <Stat label="Records" value={count(records(log.partitions))} />
        <Stat label="Size" value={bytes(log.partitions.reduce((sum, one) => sum + one.bytes, 0))} />
        <Stat label="Partitions" value={count(log.partitions.length)} />
        <Stat label="Groups" value={count(all.length)} note={`${plural(all.reduce((sum, one) => sum + totalLag(one), 0), 'record')} behind`} />
      </Stats>
      {damageCount(log.partitions) > 0 && (
        <p class="note note-bad gap-top" role="alert"><span>{plural(damageCount(log.partitions), 'damaged batch', 'damaged batches')} set aside: those records cannot be read, all others can.</span></p>
      )}
      <Card title="Partitions" aside={all.length > 0 && (
        <label class="inline-label">Marks of group{' '}
          <select value={shown?.group ?? ''} onChange={byEvent(setMarked)}>{all.map((one) => <option key={one.group}>{one.group}</option>)}</select>
        </label>
      )}>
        <Lanes partitions={log.partitions} group={shown} vhost={vhost} />
      </Card>
      {groups.error && <ErrorNote error={groups.error} />}
      {all.map((group) => <GroupCard key={group.group} group={group} onReset={() => setResetting(group)} onForget={() => void forget(group)} />)}
      {groups.data?.length === 0 && (
        <Card><Empty title="No consumer groups"><p>Consumers that give the argument <code>x-group</code> share the partitions, and the broker remembers how far they are.</p></Empty></Card>
      )}
      <Records log={log} />
      {resetting && <OffsetReset vhost={vhost} log={name} group={resetting} onClose={() => setResetting(null)} onDone={() => void groups.refresh()} />}
    </>
  );
}
