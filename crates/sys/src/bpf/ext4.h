/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0 */
/*
 * Records of ext4 commits and fsyncs, shared by both tracing methods.
 */
#ifndef BULKHEAD_EXT4_H
#define BULKHEAD_EXT4_H

#include "common.h"

/* A commit in progress. */
struct commit {
	__u64 begin_ns;
	__u64 start_ns;
	__u64 flush_ns;
	__u64 log_ns;
	__u64 journal_bytes;
	__u64 ordered_bytes;
	__u32 dev;
	__u32 journal_dev; /* 0 until it is known */
	__u32 tid;
	__u32 block_bytes;
};

/* 88 bytes x 1024 = 0.1 MiB: one entry per commit in progress, key: pid of the journal thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct commit);
} commits SEC(".maps");

/* 2 MiB: at 64 bytes a record, 30 000 fsyncs between two polls by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 2 << 20);
} records SEC(".maps");

static __always_inline struct commit *own_commit(void)
{
	__u32 thread = thread_id();

	return bpf_map_lookup_elem(&commits, &thread);
}

static __always_inline void begin_commit(const struct commit *commit)
{
	struct share_key lost_key = { .kind = SHARE_LOST };
	__u32 thread = thread_id();
	__u64 zero = 0;

	/* Reserves the fallback entry for blocks of the next transaction whose owners' entries do not fit. */
	lost_key.dev = commit->dev;
	lost_key.tid = commit->tid + 1;
	bpf_map_update_elem(&shares, &lost_key, &zero, BPF_NOEXIST);
	if (bpf_map_update_elem(&commits, &thread, commit, BPF_ANY))
		count_loss(LOSS_COMMITS_FULL);
}

static __always_inline void commit_is_flushing(void)
{
	struct commit *commit = own_commit();

	if (commit)
		commit->flush_ns = bpf_ktime_get_ns();
}

static __always_inline void commit_is_logging(void)
{
	struct commit *commit = own_commit();

	if (commit)
		commit->log_ns = bpf_ktime_get_ns();
}

/* Reports and removes the calling thread's commit. */
static __always_inline void end_commit(const struct commit *commit, __u64 end_ns)
{
	struct commit_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	__u32 thread = thread_id();

	if (record) {
		record->type = RECORD_COMMIT;
		record->dev = commit->dev;
		record->tid = commit->tid;
		record->begin_ns = commit->begin_ns;
		record->start_ns = commit->start_ns;
		record->flush_ns = commit->flush_ns;
		record->log_ns = commit->log_ns;
		record->end_ns = end_ns;
		record->journal_bytes = commit->journal_bytes;
		record->ordered_bytes = commit->ordered_bytes;
		record->cgroup = bpf_get_current_cgroup_id();
		record->block_bytes = commit->block_bytes;
		bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	} else {
		count_loss(LOSS_RING_FULL);
	}
	bpf_map_delete_elem(&commits, &thread);
}

/* A transaction was dropped from the journal. */
static __always_inline void report_dropped(__u32 dev, __u32 tid)
{
	struct dropped_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		count_loss(LOSS_RING_FULL);
		return;
	}
	record->type = RECORD_DROPPED;
	record->dev = dev;
	record->tid = tid;
	record->pad = 0;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* An fsync that needed transaction `tid` ends now. */
static __always_inline void report_sync(__u32 dev, __u32 tid, __u64 start_ns, __u64 cgroup)
{
	struct sync_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		count_loss(LOSS_RING_FULL);
		return;
	}
	record->type = RECORD_SYNC;
	record->dev = dev;
	record->tid = tid;
	record->pad = 0;
	record->start_ns = start_ns;
	record->end_ns = bpf_ktime_get_ns();
	record->cgroup = cgroup;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

#endif
