// SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
/*
 * The same accounting as bulkhead.bpf.c, for kernels without BTF: from the fields of plain tracepoints alone.
 *
 * Information that the fields lack is inferred from the order of events, or omitted: the transaction that an fsync needed is
 * inferred (the last one whose commit ended meanwhile); dirtied blocks (no shares of common blocks, no early-commit surcharge)
 * and the cgroup of a request (no device time by cgroup) are omitted.
 */
#include "ext4.h"

/* Offset of each field in its event, by enum plain_field; from the format files of tracefs. */
const volatile __u32 offsets[N_FIELDS] SEC(".rodata.offsets") = {};

/* The last commit of a journal. */
struct last_commit {
	__u64 start_ns; /* the next transaction began after this */
	__u64 end_ns;
	__u32 ended_tid;
	__u32 pad;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct last_commit);
} last_commits SEC(".maps");

/* The cgroup that owns the inode which a thread writes back. */
struct work_owner {
	__u64 cgroup;
	__u64 ends_with_handle;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct work_owner);
} work_owners SEC(".maps");

/* Owners of inodes under writeback, for kernel threads that complete the writes. */
struct inode_key {
	__u64 ino;
	__u32 dev;
	__u32 pad;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct inode_key);
	__type(value, __u64);
} inodes SEC(".maps");

/* Journal writes that a thread is about to submit, and the file system. */
#define WRITING_SUPERBLOCK 1u
#define WRITING_FAST_COMMIT 2u
struct target {
	__u32 what;
	__u32 dev;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct target);
} writing SEC(".maps");

struct sync {
	__u64 start_ns;
	__u64 cgroup;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct sync);
} syncs SEC(".maps");

/* A field of the event that a program was called with. */
#define FIELD(event, type, field)                                                         \
	({                                                                                    \
		type value = 0;                                                                   \
		bpf_probe_read_kernel(&value, sizeof(value), (void *)(event) + offsets[field]);   \
		value;                                                                            \
	})

SEC("tracepoint/writeback/writeback_single_inode_start")
int writeback_single_inode_start(void *event)
{
	struct work_owner owner = { .cgroup = FIELD(event, __u64, FIELD_WRITEBACK_CGROUP) };
	__u32 thread = thread_id();

	bpf_map_update_elem(&work_owners, &thread, &owner, BPF_ANY);
	return 0;
}

SEC("tracepoint/writeback/writeback_single_inode")
int writeback_single_inode(void *event)
{
	__u32 thread = thread_id();

	bpf_map_delete_elem(&work_owners, &thread);
	return 0;
}

SEC("tracepoint/ext4/ext4_writepages")
int ext4_writepages(void *event)
{
	__u32 thread = thread_id();
	struct work_owner *owner = bpf_map_lookup_elem(&work_owners, &thread);
	struct inode_key key = {};
	__u64 cgroup;

	if (!owner || owner->ends_with_handle)
		return 0;
	key.dev = FIELD(event, __u32, FIELD_WRITEPAGES_DEV);
	key.ino = FIELD(event, __u64, FIELD_WRITEPAGES_INO);
	cgroup = owner->cgroup;
	bpf_map_update_elem(&inodes, &key, &cgroup, BPF_ANY);
	return 0;
}

static __always_inline bool is_worker(void)
{
	char comm[16] = {};

	bpf_get_current_comm(comm, sizeof(comm));
	return comm[0] == 'k' && comm[1] == 'w' && comm[2] == 'o' && comm[3] == 'r' && comm[4] == 'k' && comm[5] == 'e' &&
	       comm[6] == 'r' && comm[7] == '/';
}

/* A worker that converts unwritten extents after writeback has no other event with the inode. */
SEC("tracepoint/ext4/ext4_mark_inode_dirty")
int ext4_mark_inode_dirty(void *event)
{
	struct work_owner owner = { .ends_with_handle = 1 };
	__u32 thread = thread_id();
	struct inode_key key = {};
	__u64 *cgroup;

	if (!is_worker() || bpf_map_lookup_elem(&work_owners, &thread))
		return 0;
	key.dev = FIELD(event, __u32, FIELD_DIRTY_DEV);
	key.ino = FIELD(event, __u64, FIELD_DIRTY_INO);
	cgroup = bpf_map_lookup_elem(&inodes, &key);
	if (!cgroup)
		return 0;
	owner.cgroup = *cgroup;
	bpf_map_update_elem(&work_owners, &thread, &owner, BPF_ANY);
	return 0;
}

SEC("tracepoint/jbd2/jbd2_handle_stats")
int jbd2_handle_stats(void *event)
{
	int dirtied_blocks = FIELD(event, int, FIELD_HANDLE_DIRTIED);
	__u32 thread = thread_id();
	struct work_owner *owner = bpf_map_lookup_elem(&work_owners, &thread);
	__u64 cgroup = owner ? owner->cgroup : bpf_get_current_cgroup_id();

	if (owner && owner->ends_with_handle)
		bpf_map_delete_elem(&work_owners, &thread);
	if (dirtied_blocks > 0)
		add_share(FIELD(event, __u32, FIELD_HANDLE_DEV), FIELD(event, __u32, FIELD_HANDLE_TID), SHARE_DIRTIED, cgroup,
			  dirtied_blocks);
	return 0;
}

SEC("tracepoint/jbd2/jbd2_start_commit")
int jbd2_start_commit(void *event)
{
	struct last_commit *last, first = {};
	struct commit commit = {};

	commit.dev = FIELD(event, __u32, FIELD_START_DEV);
	commit.tid = FIELD(event, __u32, FIELD_START_TID);
	commit.start_ns = bpf_ktime_get_ns();
	bpf_map_update_elem(&journals, &commit.dev, &commit.dev, BPF_NOEXIST);
	last = bpf_map_lookup_elem(&last_commits, &commit.dev);
	if (last) {
		commit.begin_ns = last->start_ns;
		last->start_ns = commit.start_ns;
	} else {
		first.start_ns = commit.start_ns;
		first.ended_tid = commit.tid - 1;
		bpf_map_update_elem(&last_commits, &commit.dev, &first, BPF_ANY);
	}
	begin_commit(&commit);
	return 0;
}

SEC("tracepoint/jbd2/jbd2_commit_flushing")
int jbd2_commit_flushing(void *event)
{
	commit_is_flushing();
	return 0;
}

SEC("tracepoint/jbd2/jbd2_commit_logging")
int jbd2_commit_logging(void *event)
{
	commit_is_logging();
	return 0;
}

SEC("tracepoint/jbd2/jbd2_end_commit")
int jbd2_end_commit(void *event)
{
	struct commit *commit = own_commit();
	__u64 now = bpf_ktime_get_ns();
	struct last_commit *last;

	if (!commit)
		return 0;
	last = bpf_map_lookup_elem(&last_commits, &commit->dev);
	if (last) {
		last->end_ns = now;
		last->ended_tid = commit->tid;
	}
	end_commit(commit, now);
	return 0;
}

SEC("tracepoint/jbd2/jbd2_drop_transaction")
int jbd2_drop_transaction(void *event)
{
	report_dropped(FIELD(event, __u32, FIELD_DROP_DEV), FIELD(event, __u32, FIELD_DROP_TID));
	return 0;
}

static __always_inline void start_writing(__u32 what, __u32 dev)
{
	struct target target = { .what = what, .dev = dev }, *before;
	__u32 thread = thread_id();

	before = bpf_map_lookup_elem(&writing, &thread);
	if (before)
		target.what |= before->what;
	bpf_map_update_elem(&writing, &thread, &target, BPF_ANY);
}

static __always_inline void end_writing(__u32 what)
{
	__u32 thread = thread_id();
	struct target *before = bpf_map_lookup_elem(&writing, &thread);

	if (before && before->what == what)
		bpf_map_delete_elem(&writing, &thread);
	else if (before)
		before->what &= ~what;
}

SEC("tracepoint/jbd2/jbd2_write_superblock")
int jbd2_write_superblock(void *event)
{
	start_writing(WRITING_SUPERBLOCK, FIELD(event, __u32, FIELD_SUPERBLOCK_DEV));
	return 0;
}

SEC("tracepoint/ext4/ext4_fc_commit_start")
int ext4_fc_commit_start(void *event)
{
	start_writing(WRITING_FAST_COMMIT, FIELD(event, __u32, FIELD_FAST_DEV));
	return 0;
}

SEC("tracepoint/ext4/ext4_fc_commit_stop")
int ext4_fc_commit_stop(void *event)
{
	end_writing(WRITING_FAST_COMMIT);
	return 0;
}

/* Letters of a request's operation and flags (kernel blk_fill_rwbs): F for a preflush, then W, F, A, S, M. */
#define N_LETTERS 8
static __always_inline bool is_write(const char letters[N_LETTERS])
{
	return letters[0] == 'W' || (letters[0] == 'F' && letters[1] == 'W');
}

static __always_inline bool has_meta(const char letters[N_LETTERS])
{
	for (int i = 1; i < N_LETTERS; i++)
		if (letters[i] == 'M')
			return true;
	return false;
}

SEC("tracepoint/block/block_bio_queue")
int block_bio_queue(void *event)
{
	__u32 thread = thread_id(), dev, bytes, *fs_dev;
	struct target *target;
	struct commit *commit;
	char letters[N_LETTERS] = {};

	bpf_probe_read_kernel(letters, sizeof(letters), event + offsets[FIELD_BIO_LETTERS]);
	if (!is_write(letters))
		return 0;
	bytes = FIELD(event, __u32, FIELD_BIO_SECTORS) * 512;
	dev = FIELD(event, __u32, FIELD_BIO_DEV);
	target = bpf_map_lookup_elem(&writing, &thread);
	if (target && target->what & WRITING_SUPERBLOCK) {
		add_write(target->dev, WRITE_SUPERBLOCK, 0, bytes);
		end_writing(WRITING_SUPERBLOCK);
		return 0;
	}
	commit = own_commit();
	if (commit) {
		/* Stacked devices resubmit the bio in the same thread, with another device number. */
		if (has_meta(letters) && !commit->journal_dev) {
			commit->journal_dev = dev;
			/* Each journal block is a separate bio. */
			commit->block_bytes = bytes;
			bpf_map_update_elem(&journals, &dev, &commit->dev, BPF_ANY);
		}
		if (has_meta(letters) && dev == commit->journal_dev) {
			__sync_fetch_and_add(&commit->journal_bytes, bytes);
		} else if (!has_meta(letters) && dev == commit->dev) {
			__sync_fetch_and_add(&commit->ordered_bytes, bytes);
			/* No event has the owner of the data. */
		}
		return 0;
	}
	if (!has_meta(letters))
		return 0;
	fs_dev = bpf_map_lookup_elem(&journals, &dev);
	if (fs_dev)
		add_write(*fs_dev, target ? WRITE_FAST_COMMIT : WRITE_CHECKPOINT, bpf_get_current_cgroup_id(), bytes);
	return 0;
}

SEC("tracepoint/ext4/ext4_sync_file_enter")
int ext4_sync_file_enter(void *event)
{
	struct sync sync = { .start_ns = bpf_ktime_get_ns(), .cgroup = bpf_get_current_cgroup_id() };
	__u32 thread = thread_id();

	bpf_map_update_elem(&syncs, &thread, &sync, BPF_ANY);
	return 0;
}

SEC("tracepoint/ext4/ext4_sync_file_exit")
int ext4_sync_file_exit(void *event)
{
	__u32 thread = thread_id(), dev = FIELD(event, __u32, FIELD_SYNC_DEV);
	struct sync *sync = bpf_map_lookup_elem(&syncs, &thread);
	struct last_commit *last;

	if (!sync)
		return 0;
	last = bpf_map_lookup_elem(&last_commits, &dev);
	report_sync(dev, last ? last->ended_tid : 0, sync->start_ns, sync->cgroup);
	bpf_map_delete_elem(&syncs, &thread);
	return 0;
}
