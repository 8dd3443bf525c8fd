/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Interface between the BPF programs and user space: keys and values of maps, and records of the ring buffer.
 *
 * Included by the programs, and translated to Rust by bindgen at build time (sys::bpf::generated). Fields have fixed widths;
 * padding is explicit and zero, so that a struct can be a map key. Times are CLOCK_MONOTONIC nanoseconds. Device numbers have
 * the kernel's encoding (MAJOR << 20 | MINOR). A cgroup is identified by the id of its kernfs node; 0 means unknown.
 */
#ifndef BULKHEAD_RECORD_H
#define BULKHEAD_RECORD_H

/* On the BPF side vmlinux.h has these types. */
#ifndef __VMLINUX_H__
#include <linux/types.h>
#endif

/* What a key of `shares` counts. */
enum share_kind {
	SHARE_DIRTIED = 0, /* journal blocks first dirtied in the transaction by this cgroup's handles */
	SHARE_ORDERED = 1, /* bytes of file data written by the journal thread within the commit */
	SHARE_LOST = 2, /* blocks whose own entry did not fit into the map; cgroup is 0 */
	SHARE_AGAIN = 3, /* dirtied blocks that were also in transaction `since`, less than the commit interval ago */
	/* Blocks dirtied by several cgroups, in sixths: ceded by earlier owners, and taken by later ones. */
	SHARE_CEDED = 4,
	SHARE_JOINED = 5,
	SHARE_LOGGED = 6, /* bytes by which the log vectors of an XFS checkpoint grew; `tid` is its sequence number */
};

#define SIXTHS 6

/* Number of past transactions that SHARE_AGAIN distinguishes; older ones count as the oldest of these. */
#define SHARE_SINCE_MAX 8

/* A cgroup's share of a transaction. Entries stay until user space has read them after the commit. */
struct share_key {
	__u64 cgroup;
	__u32 dev; /* of the file system */
	__u32 tid; /* of the transaction; wraps around */
	__u32 kind; /* enum share_kind */
	__u32 since; /* SHARE_AGAIN: the previous transaction of the blocks; else 0 */
};

/* Journal writes outside commits; the value is a sum of bytes. */
enum write_kind {
	WRITE_SUPERBLOCK = 0, /* of the journal; cgroup is 0 */
	WRITE_FAST_COMMIT = 1, /* fast-commit blocks, written by the caller of fsync */
	WRITE_CHECKPOINT = 2, /* metadata written in place, by the cgroup that wrote it */
	WRITE_LOG = 3, /* XFS log, by the cgroup that the kernel charged */
};

struct write_key {
	__u64 cgroup; /* the writer */
	__u32 dev; /* of the file system */
	__u32 kind; /* enum write_kind */
};

/* Requests served by a device, by cgroup. */
struct service_key {
	__u64 cgroup; /* of the bio, as the io controller sees it; 0 for a flush */
	__u32 dev; /* the whole disk */
	__u32 class; /* enum service_class */
};

enum service_class {
	SERVICE_DATA = 0,
	SERVICE_META = 1, /* REQ_META */
	SERVICE_FLUSH = 2,
};

struct service {
	__u64 busy_ns; /* device time; the sum over all keys of a device is its busy time */
	__u64 read_bytes;
	__u64 written_bytes;
	__u64 requests;
};

enum record_type {
	RECORD_COMMIT = 1,
	RECORD_SYNC = 2,
	RECORD_DROPPED = 3,
	RECORD_LOG = 4,
};

/* The end of a commit. */
struct commit_record {
	__u32 type; /* RECORD_COMMIT */
	__u32 dev; /* of the file system */
	__u32 tid;
	__u32 block_bytes; /* size of a journal block */
	__u64 begin_ns; /* first handle of the transaction */
	__u64 start_ns; /* the transaction is locked: no new handles */
	__u64 flush_ns; /* all handles are finished; writing ordered data starts */
	__u64 log_ns; /* writing metadata to the journal starts */
	__u64 end_ns;
	__u64 journal_bytes; /* written to the journal by the journal thread */
	__u64 ordered_bytes;
	__u64 cgroup; /* of the journal thread, which the kernel charges */
};

/* The end of an fsync, fdatasync or O_SYNC write. */
struct sync_record {
	__u32 type; /* RECORD_SYNC */
	__u32 dev; /* of the file system */
	__u32 tid; /* the last transaction that changed the file, which the fsync needed */
	__u32 pad;
	__u64 start_ns;
	__u64 end_ns;
	__u64 cgroup;
};

/* A transaction is checkpointed: all its blocks are written in place. */
struct dropped_record {
	__u32 type; /* RECORD_DROPPED */
	__u32 dev;
	__u32 tid;
	__u32 pad;
};

/* A write to an XFS log. */
struct log_record {
	__u32 type; /* RECORD_LOG */
	__u32 dev; /* of the file system */
	__u32 checkpoint; /* newest closed checkpoint; the write belongs to it or to an earlier one; wraps around */
	__u32 bytes;
	__u64 at_ns;
	__u64 requester; /* cgroup that forced that checkpoint; 0 if none did */
	__u64 active_bytes; /* active part of the log: changes not yet written in place */
	__u32 overhead_bytes; /* upper bound of a checkpoint's size beyond its log vectors and their record headers */
	__u32 header_bytes; /* of each record of `iclog_bytes` */
	__u32 iclog_bytes;
	__u32 pad;
};

/* Indices of `losses`. */
enum loss {
	LOSS_RING_FULL = 0, /* records dropped because the ring buffer was full */
	LOSS_SHARES_FULL = 1, /* first-dirtied counts accounted to SHARE_LOST */
	LOSS_SHARES_GONE = 2, /* counts for which SHARE_LOST had no entry either */
	LOSS_WRITES_FULL = 3, /* superblock, fast-commit, checkpoint writes */
	LOSS_SERVICE_FULL = 4, /* requests */
	LOSS_COMMITS_FULL = 5, /* commits that were not tracked */
	LOSS_KINDS = 6,
};

/* Indices of `offsets` in plain.bpf.c: fields of events. */
enum plain_field {
	FIELD_HANDLE_DEV,
	FIELD_HANDLE_TID,
	FIELD_HANDLE_DIRTIED,
	FIELD_START_DEV,
	FIELD_START_TID,
	FIELD_DROP_DEV,
	FIELD_DROP_TID,
	FIELD_SUPERBLOCK_DEV,
	FIELD_FAST_DEV,
	FIELD_SYNC_DEV,
	FIELD_WRITEPAGES_DEV,
	FIELD_WRITEPAGES_INO,
	FIELD_DIRTY_DEV,
	FIELD_DIRTY_INO,
	FIELD_WRITEBACK_CGROUP,
	FIELD_BIO_DEV,
	FIELD_BIO_SECTORS,
	FIELD_BIO_LETTERS,
	N_FIELDS,
};

/* Requests of profiled cgroups. */
#define DEMAND_WRITE 1u
#define DEMAND_SEQUENTIAL 2u /* begins where another one of the same direction ended */
#define DEMAND_BACKGROUND 4u /* nobody waits for it: a write without REQ_SYNC */
struct demand_key {
	__u32 dev; /* the whole disk */
	__u32 kind; /* DEMAND_* */
};

struct demand {
	__u64 requests;
	__u64 bytes;
};

/* Calls to fsync, fdatasync, and on ext4 also msync and writes with O_DSYNC. */
struct durable {
	__u64 calls;
	__u64 ns;
	__u64 commits; /* calls during which a commit of the file system ended */
};

#endif
