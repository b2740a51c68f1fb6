CREATE TABLE bindings (
	vhost TEXT NOT NULL,
	source TEXT NOT NULL,
	destination TEXT NOT NULL,
	destination_kind TEXT NOT NULL,
	routing_key TEXT NOT NULL,
	arguments TEXT NOT NULL,
	PRIMARY KEY (vhost, source, destination, destination_kind, routing_key, arguments)
);
CREATE TABLE body_parts (
	id INTEGER NOT NULL,
	data BLOB NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE events (
	id INTEGER NOT NULL,
	time_ms BIGINT DEFAULT '0' NOT NULL,
	kind BIGINT DEFAULT '0' NOT NULL,
	queue_id BIGINT DEFAULT '0' NOT NULL,
	actor BIGINT DEFAULT '0' NOT NULL,
	detail TEXT,
	count BIGINT DEFAULT '0' NOT NULL,
	first_id BIGINT DEFAULT '0' NOT NULL,
	last_id BIGINT DEFAULT '0' NOT NULL,
	ids BLOB NOT NULL,
	sizes BLOB,
	crc BIGINT DEFAULT '0' NOT NULL,
	PRIMARY KEY (id)
);
CREATE INDEX events_by_queue ON events (queue_id, id);
CREATE TABLE exchanges (
	vhost TEXT NOT NULL,
	name TEXT NOT NULL,
	kind TEXT DEFAULT 'direct' NOT NULL,
	auto_delete BOOLEAN DEFAULT '0' NOT NULL,
	internal BOOLEAN DEFAULT '0' NOT NULL,
	arguments TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (vhost, name)
);
CREATE TABLE group_offsets (
	queue_id BIGINT NOT NULL,
	group_name TEXT NOT NULL,
	"offset" BIGINT DEFAULT '0' NOT NULL,
	time_ms BIGINT DEFAULT '0' NOT NULL,
	PRIMARY KEY (queue_id, group_name)
);
CREATE TABLE log_ends (
	queue_id INTEGER NOT NULL,
	next_offset BIGINT DEFAULT '0' NOT NULL,
	reserved_to BIGINT DEFAULT '0' NOT NULL,
	PRIMARY KEY (queue_id)
);
CREATE TABLE message_packs (
	id INTEGER NOT NULL,
	last_id BIGINT DEFAULT '0' NOT NULL,
	count BIGINT DEFAULT '0' NOT NULL,
	first_ms BIGINT DEFAULT '0' NOT NULL,
	last_ms BIGINT DEFAULT '0' NOT NULL,
	keep BIGINT DEFAULT '0' NOT NULL,
	body_bytes BIGINT DEFAULT '0' NOT NULL,
	has_bodies BIGINT DEFAULT '0' NOT NULL,
	first_part BIGINT,
	parts BIGINT DEFAULT '0' NOT NULL,
	runs BLOB NOT NULL,
	ids BLOB,
	sizes BLOB NOT NULL,
	crcs BLOB NOT NULL,
	body_crc BIGINT DEFAULT '0' NOT NULL,
	crc BIGINT DEFAULT '0' NOT NULL,
	data BLOB,
	PRIMARY KEY (id)
);
CREATE INDEX packs_with_parts ON message_packs (first_part) WHERE first_part IS NOT NULL;
CREATE TABLE meta (
	"key" TEXT NOT NULL,
	value TEXT DEFAULT '' NOT NULL,
	PRIMARY KEY ("key")
);
CREATE TABLE origins (
	id INTEGER NOT NULL,
	kind BIGINT DEFAULT '0' NOT NULL,
	vhost TEXT DEFAULT '' NOT NULL,
	user TEXT DEFAULT '' NOT NULL,
	connection TEXT DEFAULT '' NOT NULL,
	channel BIGINT DEFAULT '0' NOT NULL,
	consumer_tag TEXT DEFAULT '' NOT NULL,
	created_ms BIGINT DEFAULT '0' NOT NULL,
	closed_ms BIGINT,
	PRIMARY KEY (id)
);
CREATE TABLE parameters (
	vhost TEXT NOT NULL,
	component TEXT NOT NULL,
	name TEXT NOT NULL,
	value TEXT DEFAULT 'null' NOT NULL,
	PRIMARY KEY (vhost, component, name)
);
CREATE TABLE permissions (
	user TEXT NOT NULL,
	vhost TEXT NOT NULL,
	configure TEXT DEFAULT '' NOT NULL,
	write TEXT DEFAULT '' NOT NULL,
	read TEXT DEFAULT '' NOT NULL,
	PRIMARY KEY (user, vhost)
);
CREATE TABLE policies (
	vhost TEXT NOT NULL,
	name TEXT NOT NULL,
	operator BOOLEAN NOT NULL,
	pattern TEXT DEFAULT '' NOT NULL,
	apply_to TEXT DEFAULT 'all' NOT NULL,
	priority BIGINT DEFAULT '0' NOT NULL,
	definition TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (vhost, name, operator)
);
CREATE TABLE queues (
	id INTEGER NOT NULL,
	vhost TEXT DEFAULT '' NOT NULL,
	name TEXT DEFAULT '' NOT NULL,
	kind TEXT DEFAULT 'classic' NOT NULL,
	durable BOOLEAN DEFAULT '0' NOT NULL,
	auto_delete BOOLEAN DEFAULT '0' NOT NULL,
	"exclusive" BOOLEAN DEFAULT '0' NOT NULL,
	arguments TEXT DEFAULT '{}' NOT NULL,
	created_ms BIGINT DEFAULT '0' NOT NULL,
	delivered_to BIGINT DEFAULT '0' NOT NULL,
	snapshot_event BIGINT DEFAULT '0' NOT NULL,
	deleted_ms BIGINT,
	PRIMARY KEY (id)
);
CREATE TABLE topic_permissions (
	user TEXT NOT NULL,
	vhost TEXT NOT NULL,
	exchange TEXT NOT NULL,
	write TEXT DEFAULT '' NOT NULL,
	read TEXT DEFAULT '' NOT NULL,
	PRIMARY KEY (user, vhost, exchange)
);
CREATE TABLE users (
	name TEXT NOT NULL,
	password_hash TEXT DEFAULT '' NOT NULL,
	hashing TEXT DEFAULT '' NOT NULL,
	tags TEXT DEFAULT '' NOT NULL,
	options TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (name)
);
CREATE TABLE vhosts (
	name TEXT NOT NULL,
	options TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (name)
);
