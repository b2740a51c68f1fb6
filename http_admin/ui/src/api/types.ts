/** JSON shapes of the HTTP API that RabbitMQ has too. Unknown fields are ignored. */

export type * from './types-own';

export interface Sample {
  timestamp: number;
  sample: number;
}

export interface Details {
  rate?: number;
  samples?: Sample[];
}

export type Table = Record<string, unknown>;

export type StatKey =
  | 'publish' | 'publish_in' | 'publish_out' | 'confirm' | 'deliver' | 'deliver_no_ack' | 'get'
  | 'get_no_ack' | 'deliver_get' | 'redeliver' | 'ack' | 'drop_unroutable' | 'return_unroutable';

export type MessageStats = Partial<Record<StatKey, number>> & Partial<Record<`${StatKey}_details`, Details>>;

export interface Page<Row> {
  items: Row[];
  page: number;
  page_count: number;
  page_size: number;
  item_count: number;
  filtered_count: number;
  total_count: number;
}

export interface Session {
  name: string;
  tags: string[] | string;
  csrf?: string;
}

export interface QueueTotals {
  messages?: number;
  messages_ready?: number;
  messages_unacknowledged?: number;
  messages_details?: Details;
  messages_ready_details?: Details;
  messages_unacknowledged_details?: Details;
}

export interface Listener {
  node: string;
  protocol: string;
  ip_address: string;
  port: number;
}

export interface Overview {
  cluster_name: string;
  node: string;
  product_name?: string;
  product_version?: string;
  rabbitmq_version?: string;
  message_stats?: MessageStats;
  queue_totals?: QueueTotals;
  object_totals?: Partial<Record<'connections' | 'channels' | 'queues' | 'exchanges' | 'consumers', number>>;
  listeners?: Listener[];
  exchange_types?: { name: string; description?: string; enabled?: boolean }[];
}

export interface Node {
  name: string;
  running?: boolean;
  uptime?: number;
  mem_used?: number;
  mem_limit?: number;
  mem_alarm?: boolean;
  disk_free?: number;
  disk_free_limit?: number;
  disk_free_alarm?: boolean;
  fd_used?: number;
  fd_total?: number;
  sockets_used?: number;
}

export interface Connection {
  name: string;
  vhost?: string;
  user?: string;
  state?: string;
  protocol?: string;
  ssl?: boolean;
  channels?: number;
  channel_max?: number;
  frame_max?: number;
  timeout?: number;
  connected_at?: number;
  peer_host?: string;
  peer_port?: number;
  host?: string;
  port?: number;
  user_provided_name?: string;
  client_properties?: Table;
  recv_oct?: number;
  send_oct?: number;
  recv_oct_details?: Details;
  send_oct_details?: Details;
}

export interface Channel {
  name: string;
  number?: number;
  vhost?: string;
  user?: string;
  state?: string;
  confirm?: boolean;
  transactional?: boolean;
  prefetch_count?: number;
  global_prefetch_count?: number;
  consumer_count?: number;
  messages_unacknowledged?: number;
  messages_unconfirmed?: number;
  messages_uncommitted?: number;
  acks_uncommitted?: number;
  connection_details?: { name: string };
  message_stats?: MessageStats;
  consumer_details?: Consumer[];
}

export interface Consumer {
  consumer_tag: string;
  ack_required?: boolean;
  active?: boolean;
  exclusive?: boolean;
  prefetch_count?: number;
  arguments?: Table;
  queue?: { name: string; vhost: string };
  channel_details?: { name?: string; connection_name?: string; user?: string; number?: number };
}

export interface Exchange {
  name: string;
  vhost: string;
  type: string;
  durable: boolean;
  auto_delete: boolean;
  internal: boolean;
  arguments: Table;
  policy?: string | null;
  message_stats?: MessageStats;
  /** How many messages wait at a delayed exchange. */
  messages_delayed?: number;
}

export interface Queue extends QueueTotals {
  name: string;
  vhost: string;
  type?: string;
  state?: string;
  durable: boolean;
  auto_delete: boolean;
  exclusive: boolean;
  arguments: Table;
  policy?: string | null;
  operator_policy?: string | null;
  effective_policy_definition?: Table;
  consumers?: number;
  consumer_details?: Consumer[];
  message_bytes?: number;
  message_bytes_ready?: number;
  message_bytes_unacknowledged?: number;
  message_stats?: MessageStats;
  oldest_ready_age_ms?: number | null;
  oldest_unacked_age_ms?: number | null;
  idle_since?: string;
}

export interface Binding {
  source: string;
  vhost: string;
  destination: string;
  destination_type: 'queue' | 'exchange';
  routing_key: string;
  arguments: Table;
  properties_key?: string;
}

export interface Message {
  id?: number;
  position?: number;
  exchange: string;
  routing_key: string;
  redelivered: boolean;
  properties: Table | [];
  payload: string;
  payload_bytes: number;
  payload_encoding: string;
  state?: 'ready' | 'unacked';
  age_ms?: number;
  message_count?: number;
}

export interface Vhost extends QueueTotals {
  name: string;
  description?: string;
  tags?: string[] | string;
  default_queue_type?: string;
  tracing?: boolean;
  message_stats?: MessageStats;
  recv_oct_details?: Details;
  send_oct_details?: Details;
}

export interface User {
  name: string;
  tags: string[] | string;
}

export interface Permission {
  user: string;
  vhost: string;
  configure: string;
  write: string;
  read: string;
}

export interface TopicPermission {
  user: string;
  vhost: string;
  exchange: string;
  write: string;
  read: string;
}

export interface Policy {
  vhost: string;
  name: string;
  pattern: string;
  'apply-to': string;
  definition: Table;
  priority: number;
}

export interface LimitSet {
  vhost?: string;
  user?: string;
  value: Record<string, number>;
}

export type Definitions = Partial<Record<string, unknown>>;
