import { useState } from 'preact/hooks';
import { ApiError, apiPath, remove } from '../api/client';
import { useLive } from '../api/live';
import type { Group, GroupMember, GroupPartition, Log } from '../api/types';
import { Badge } from '../components/badge';
import { Card, Empty } from '../components/card';
import { type Column, DataTable } from '../components/data-table';
import { confirmLoss } from '../components/dialog';
import { onSelect } from '../components/forms';
import { ConnectionLink } from '../components/links';
import { LogRecords } from '../components/log-records';
import { PageHead } from '../components/page-head';
import { PartitionLanes } from '../components/partition-lanes';
import { ResetOffsetsDialog } from '../components/reset-offsets-dialog';
import { Stat, Stats } from '../components/stats';
import { ErrorNote, Loading, NotSupported } from '../components/status-notes';
import { attempt } from '../components/toasts';
import { bytes, count, plural } from '../lib/format';
import {
  commitText,
  damageCount,
  isConnection,
  lostText,
  retentionText,
  waitingMembers,
} from '../lib/logs';

function assignedMember(group: Group, partition: number) {
  const member = group.members.find((candidate) => candidate.partitions.includes(partition));
  if (member === undefined) return <Badge tone="warn">no member</Badge>;
  return <MemberName member={member} />;
}

function MemberName({ member }: { member: GroupMember }) {
  return (
    <>
      <code>{member.consumer_tag}</code>{' '}
      <span class="under minor">
        {isConnection(member) ? <ConnectionLink name={member.connection} /> : 'over HTTP'}
      </span>
    </>
  );
}

function groupColumns(group: Group): Column<GroupPartition>[] {
  return [
    { id: 'partition', title: 'Partition', render: (item) => item.partition },
    {
      id: 'committed',
      title: 'Committed',
      numeric: true,
      minor: true,
      render: (item) => (item.committed === null ? 'none' : count(item.committed)),
    },
    { id: 'end', title: 'End', numeric: true, minor: true, render: (item) => count(item.end) },
    {
      id: 'lag',
      title: 'Lag',
      numeric: true,
      render: (item) => (
        <LagCell lag={item.lag} max={Math.max(1, ...group.partitions.map((other) => other.lag))} />
      ),
    },
    { id: 'member', title: 'Member', render: (item) => assignedMember(group, item.partition) },
  ];
}

function LagCell({ lag, max }: { lag: number; max: number }) {
  return (
    <span class="lag">
      <span class="lag-bar" aria-hidden="true">
        <span style={{ width: `${(lag / max) * 100}%` }} />
      </span>
      {count(lag)}
    </span>
  );
}

interface GroupCardProps {
  group: Group;
  onReset: () => void;
  onDelete: () => void;
}

function GroupCard({ group, onReset, onDelete }: GroupCardProps) {
  const waiting = waitingMembers(group);
  const members = `${plural(group.members.length, 'member')}${waiting.length === 0 ? '' : `, ${waiting.length} waiting`}`;
  const buttons = (
    <div class="actions">
      {group.members.length === 0 && (
        <button
          type="button"
          class="button button-small"
          onClick={onDelete}
          aria-label={`Delete group ${group.group}`}
        >
          Delete group
        </button>
      )}
      <button
        type="button"
        class="button button-small"
        onClick={onReset}
        aria-label={`Reset offsets of ${group.group}`}
      >
        Reset offsets…
      </button>
    </div>
  );
  return (
    <Card title={group.group} testid="group" aside={buttons}>
      <p class="card-lead muted">
        {members} · lag: {plural(group.lag, 'record')} · {commitText(group)}
      </p>
      <DataTable
        label={`Partitions of group ${group.group}`}
        columns={groupColumns(group)}
        rows={group.partitions}
        rowKey={(item) => String(item.partition)}
      />
      {waiting.length > 0 && (
        <div class="waiting">
          <h3>Waiting for a partition</h3>
          <ul>
            {waiting.map((item) => (
              <li key={item.consumer_tag}>
                <MemberName member={item} />
              </li>
            ))}
          </ul>
        </div>
      )}
    </Card>
  );
}

export function LogPage({ vhost, name }: { vhost: string; name: string }) {
  const { data: log, error } = useLive<Log>(apiPath('logs', vhost, name));
  const groups = useLive<Group[]>(apiPath('logs', vhost, name, 'groups'));
  const [shownName, setShownName] = useState('');
  const [resetting, setResetting] = useState<Group | null>(null);
  const parent = { label: 'Logs', to: '#/logs' };
  if (log === undefined) {
    const isMissing = error instanceof ApiError && error.status === 404;
    return (
      <>
        <PageHead title={name} parent={parent} />
        {isMissing ? (
          <p>
            Log “{name}” does not exist in “{vhost}”.
          </p>
        ) : error ? (
          <NotSupported feature="logs" error={error} />
        ) : (
          <Loading />
        )}
      </>
    );
  }
  const deleteGroup = async (group: Group): Promise<void> => {
    const confirmed = await confirmLoss({
      title: `Delete group ${group.group}?`,
      loss: `Its committed offsets will be lost: members that join it later start without item. The records of ${name} stay.`,
      action: 'Delete group',
    });
    if (
      confirmed &&
      (await attempt(
        () => remove(apiPath('logs', vhost, name, 'groups', group.group)),
        `Group ${group.group} deleted.`,
      ))
    )
      void groups.refresh();
  };
  const all = groups.data ?? [];
  const shown = all.find((item) => item.group === shownName) ?? all[0];
  return (
    <>
      <PageHead title={name} parent={parent} sub={`Log in ${vhost}, ${retentionText(log)}`} />
      <Stats>
        <Stat label="Records" value={count(log.messages)} />
        <Stat label="Size" value={bytes(log.bytes)} />
        <Stat label="Partitions" value={count(log.partitions.length)} />
        <Stat
          label="Groups"
          value={count(all.length)}
          note={`lag: ${plural(
            all.reduce((sum, item) => sum + item.lag, 0),
            'record',
          )}`}
        />
      </Stats>
      {damageCount(log.partitions) > 0 && (
        <p class="note note-bad gap-top" role="alert">
          <span>
            Some records are lost, all others can be read: {lostText(log.partitions).join('; ')}.
          </span>
        </p>
      )}
      <Card
        title="Partitions"
        aside={
          all.length > 0 && (
            <label class="inline-label">
              Show group{' '}
              <select value={shown?.group ?? ''} onChange={onSelect(setShownName)}>
                {all.map((item) => (
                  <option key={item.group}>{item.group}</option>
                ))}
              </select>
            </label>
          )
        }
      >
        <PartitionLanes partitions={log.partitions} group={shown} vhost={vhost} />
      </Card>
      {groups.error && <ErrorNote error={groups.error} />}
      {all.map((group) => (
        <GroupCard
          key={group.group}
          group={group}
          onReset={() => setResetting(group)}
          onDelete={() => void deleteGroup(group)}
        />
      ))}
      {groups.data?.length === 0 && (
        <Card>
          <Empty title="No consumer groups">
            <p>
              Consumers with the same <code>x-group</code> argument share the partitions, and the
              broker keeps their offsets.
            </p>
          </Empty>
        </Card>
      )}
      <LogRecords log={log} />
      {resetting && (
        <ResetOffsetsDialog
          vhost={vhost}
          log={name}
          group={resetting}
          onClose={() => setResetting(null)}
          onDone={() => void groups.refresh()}
        />
      )}
    </>
  );
}
