/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the BPF programs hand to user space: the keys and values of their maps and the records of their ring buffer.
 *
 * Included by the programs, and turned into Rust by bindgen when the crate is built (sys::bpf::generated). Fields have fixed
 * widths, padding is explicit and zero, so that a struct can be a map key. Times are CLOCK_MONOTONIC nanoseconds. A device
 * number is the kernel's own (MAJOR << 20 | MINOR). A cgroup is the id of its kernfs node, 0 where nobody is known.
 */
#ifndef BULKHEAD_RECORD_H
#define BULKHEAD_RECORD_H

/* The kernel's own header has these types too; there is nothing to include on the BPF side. */
#ifndef __VMLINUX_H__
#include <linux/types.h>
#endif

/* What a key of `shares` counts. */
enum share_kind {
	SHARE_DIRTIED = 0, /* journal blocks that a handle was the first to dirty in its transaction */
	SHARE_ORDERED = 1, /* bytes of file data that the journal thread wrote inside the commit */
	SHARE_LOST = 2, /* blocks whose own entry found no room; cgroup is 0 */
	SHARE_AGAIN = 3, /* dirtied blocks that the transaction `since` had already, less than the commit interval ago */
	/* Blocks that several dirtied, in sixths: what their first owners gave of them, and what those who came later took. */
	SHARE_CEDED = 4,
	SHARE_JOINED = 5,
	SHARE_LOGGED = 6, /* bytes by which the log vectors of an XFS checkpoint grew; `tid` is its sequence number */
};

#define SIXTHS 6

/* How many transactions back SHARE_AGAIN tells apart; what is older counts for the oldest of these. */
#define SHARE_SINCE_MAX 8

/* Who had how much in a transaction. Entries live until user space has read them after the end of the commit. */
struct share_key {
	__u64 cgroup;
	__u32 dev; /* of the file system */
	__u32 tid; /* of the transaction; wraps around */
	__u32 kind; /* enum share_kind */
	__u32 since; /* SHARE_AGAIN: the transaction that had the blocks before; else 0 */
};

/* Journal writes outside commits; the value is a sum of bytes. */
enum write_kind {
	WRITE_SUPERBLOCK = 0, /* of the journal; cgroup is 0 */
	WRITE_FAST_COMMIT = 1, /* fast-commit blocks, written by the caller of fsync */
	WRITE_CHECKPOINT = 2, /* metadata at its place in the file system, by whoever wrote it */
	WRITE_LOG = 3, /* an XFS log, by whom the kernel charged */
};

struct write_key {
	__u64 cgroup; /* the writer */
	__u32 dev; /* of the file system */
	__u32 kind; /* enum write_kind */
};

/* Whose requests a device served. */
struct service_key {
	__u64 cgroup; /* of the bio: the io controller's, 0 for a flush */
	__u32 dev; /* the whole device */
	__u32 class; /* enum service_class */
};

enum service_class {
	SERVICE_DATA = 0,
	SERVICE_META = 1, /* REQ_META */
	SERVICE_FLUSH = 2,
};

struct service {
	__u64 busy_ns; /* time that the device spent; over all keys of a device the time that it was not idle */
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
	__u64 begin_ns; /* the transaction's first handle */
	__u64 start_ns; /* the transaction takes no new handles from here on */
	__u64 flush_ns; /* its handles are finished; ordered data is written */
	__u64 log_ns; /* metadata is written to the journal */
	__u64 end_ns;
	__u64 journal_bytes; /* what the journal thread wrote to the journal */
	__u64 ordered_bytes;
	__u64 cgroup; /* where the journal thread is: whom the kernel charges */
};

/* The end of an fsync, fdatasync or O_SYNC write. */
struct sync_record {
	__u32 type; /* RECORD_SYNC */
	__u32 dev; /* of the file system */
	__u32 tid; /* the last transaction that changed the file, which is the one that it needed */
	__u32 pad;
	__u64 start_ns;
	__u64 end_ns;
	__u64 cgroup;
};

/* A transaction is checkpointed: all its blocks are at their places. */
struct dropped_record {
	__u32 type; /* RECORD_DROPPED */
	__u32 dev;
	__u32 tid;
	__u32 pad;
};

/* A write to the log of an XFS. */
struct log_record {
	__u32 type; /* RECORD_LOG */
	__u32 dev; /* of the file system */
	__u32 checkpoint; /* the newest one that took no more transactions: this one, or one before it, is written; wraps around */
	__u32 bytes;
	__u64 at_ns;
	__u64 requester; /* cgroup that forced that checkpoint; 0 if nobody did */
	__u64 active_bytes; /* part of the log whose changes are not at their places */
	__u32 overhead_bytes; /* most that a checkpoint takes besides its log vectors and their record headers */
	__u32 header_bytes; /* of each record of `iclog_bytes` */
	__u32 iclog_bytes;
	__u32 pad;
};

/* Indices of `losses`. */
enum loss {
	LOSS_RING_FULL = 0, /* records that found no room */
	LOSS_SHARES_FULL = 1, /* first-dirtied counts that were put under SHARE_LOST */
	LOSS_SHARES_GONE = 2, /* and those that even that had no room for */
	LOSS_WRITES_FULL = 3, /* superblock, fast-commit, checkpoint writes */
	LOSS_SERVICE_FULL = 4, /* requests */
	LOSS_COMMITS_FULL = 5, /* commits that were not followed */
	LOSS_KINDS = 6,
};

/* Indices of `offsets` of plain.bpf.c: fields of events. */
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

#endif
