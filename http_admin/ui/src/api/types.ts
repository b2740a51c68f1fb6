/**
 * Short names for the types of the HTTP API. `schema.ts` is generated from the API's OpenAPI
 * document by tools/generate_api_types.py.
 */

import type { components } from './schema';

type Schemas = components['schemas'];

/** An AMQP table: arguments, headers, properties. */
export type Table = Record<string, unknown>;

/** A list whose query has `page`. */
export type Page<Row> = Omit<Schemas['Page_QueueRow_'], 'items'> & { items: Row[] };

export type Binding = Schemas['BindingRow'];
export type Channel = Schemas['ChannelRow'];
export type ChannelDetails = Schemas['ChannelDetails'];
export type Connection = Schemas['ConnectionRow'];
export type Consumer = Schemas['ConsumerRow'];
export type Definitions = Schemas['Definitions'] | Schemas['VhostDefinitions'];
export type ImportReport = Schemas['ImportReport'];
export type Details = Schemas['Details'];
export type DiskUsage = Schemas['DiskUsageRow'];
export type Exchange = Schemas['ExchangeRow'];
export type Group = Schemas['GroupRow'];
export type GroupMember = Schemas['GroupMember'];
export type GroupPartition = Schemas['GroupPartition'];
export type HistoryInfo = Schemas['HistoryRow'];
export type Log = Schemas['LogRow'];
export type LogRecord = Schemas['RecordRow'];
export type LostData = Schemas['LostDataRow'];
export type MessageProperties = Schemas['MessageProperties'];
export type MessageStats = Schemas['MessageStats'];
export type Node = Schemas['NodeRow'];
export type OffsetMove = Schemas['OffsetMove'];
export type Overview = Schemas['OverviewRow'];
export type Partition = Schemas['PartitionRow'];
export type Permission = Schemas['DefinedPermission'];
export type Policy = Schemas['DefinedPolicy'];
export type PublishResult = Schemas['Routed'];
export type Queue = Schemas['QueueRow'];
export type QueueDetails = Schemas['QueueDetails'];
export type QueueTotals = Schemas['QueueTotals'];
export type RouteResult = Schemas['RouteResult'];
export type Sample = Schemas['Sample'];
export type ScheduledMessage = Schemas['ScheduledMessage'];
export type Session = Schemas['Identity'];
export type Setting = Schemas['SettingRow'];
export type TopicPermission = Schemas['DefinedTopicPermission'];
export type Trace = Schemas['TraceRow'];
export type TraceEvent = Schemas['TraceEvent'];
export type TracedMessage = Schemas['TracedMessage'];
export type User = Schemas['UserRow'];
export type UserLimits = Schemas['UserLimits'];
export type Vhost = Schemas['VhostRow'];
export type VhostLimits = Schemas['VhostLimits'];

/** A message of a queue, from browse or from get; only browse knows the optional fields. */
export type Message = Omit<Schemas['GotMessage'], 'message_count'> &
  Partial<Pick<Schemas['BrowsedMessage'], 'id' | 'position' | 'state' | 'age_ms'>>;
