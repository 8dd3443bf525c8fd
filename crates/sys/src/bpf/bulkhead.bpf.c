// SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
/*
 * Ownership of blocks in each commit, bytes written by the journal thread, and waiters.
 *
 * Frequent events (handles, requests) are counted in maps; each commit and each fsync is reported through a ring buffer. No
 * policy: user space turns the figures into charges (core::observe). Events that did not fit into a map or the ring buffer are
 * counted in `losses`, so that user space can report the gap.
 *
 * Since Linux 6.12 the verifier assumes that pointers passed to a tracepoint may be NULL.
 */
#include "ext4.h"

#include <bpf/bpf_tracing.h>

/* On whose behalf a kernel thread works. */
struct work_owner {
	__u64 cgroup;
	__u64 in_writepages; /* valid until writepages returns, not only for the next handle */
};

struct sync {
	__u64 start_ns;
	__u64 cgroup;
	struct inode *inode; /* pinned while its fsync runs */
	__u32 dev;
	__u32 datasync;
};

struct device {
	__u64 last_ns; /* device time is accounted up to here */
	__u64 n_inflight;
};

/* 96 bytes x 8192 = 0.8 MiB. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

/* A block in the transaction that last dirtied it. */
#define MAX_OWNERS 3
struct block {
	__u64 jiffies; /* first dirtied, in the first of the transactions within one commit interval */
	__u64 mounted_ns; /* start time of the journal thread; identifies the mount, as tids restart with each mount */
	__u64 owners[MAX_OWNERS]; /* cgroups that dirtied it, in order */
	__u32 n_owners;
	__u32 tid;
};
struct block_key {
	__u64 block;
	__u32 dev;
	__u32 pad;
};
/* 6 MiB. If a block is evicted, its first owner alone is charged for it, and no cgroup for logging it again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct block_key);
	__type(value, struct block);
} blocks SEC(".maps");

/*
 * Cache of recently dirtied blocks per CPU: makes it cheap if a cgroup dirties the same blocks repeatedly. A program preempted
 * by another one may leave a mixed entry; at worst one additional owner of a block is missed.
 */
#define N_RECENT 256
struct recent {
	__u64 transaction;
	__u64 block;
	__u64 cgroup;
	__u64 tid;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, N_RECENT);
	__type(key, __u32);
	__type(value, struct recent);
} recents SEC(".maps");

/* Devices with a request queue. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

/*
 * Requests in flight, by address. There are completion events without an issue event (two for a request with a flush, kernel
 * blk_flush_complete_seq), and requeue events for requests that were never issued.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u8);
} issued SEC(".maps");

/* Key: pid of the kernel thread. LRU, because the exit of threads is not traced. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct work_owner);
} work_owners SEC(".maps");

/* Journal writes that a thread is about to submit: WRITING_* bits. */
#define WRITING_SUPERBLOCK 1u /* its next bio is the journal superblock */
#define WRITING_FAST_COMMIT 2u /* until ext4_fc_commit_stop */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} writing SEC(".maps");

/* Calls to fsync in progress, by thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct sync);
} syncs SEC(".maps");

/* The cgroup that the current thread works for: its own, or the owner of the inode that a kernel thread writes back. */
static __always_inline __u64 owner(bool ends_handle)
{
	__u32 thread = thread_id();
	struct work_owner *owner;
	__u64 cgroup;

	if (!is_kernel_thread())
		return bpf_get_current_cgroup_id();
	owner = bpf_map_lookup_elem(&work_owners, &thread);
	if (!owner)
		return bpf_get_current_cgroup_id();
	cgroup = owner->cgroup;
	if (ends_handle && !owner->in_writepages)
		bpf_map_delete_elem(&work_owners, &thread);
	return cgroup;
}

static __always_inline void set_owner(struct inode *inode, __u64 in_writepages)
{
	struct work_owner owner = { .in_writepages = in_writepages };
	__u32 thread = thread_id();
	struct work_owner *before;

	if (!inode || !is_kernel_thread())
		return;
	before = bpf_map_lookup_elem(&work_owners, &thread);
	if (!in_writepages && before && before->in_writepages)
		return;
	owner.cgroup = writeback_owner(inode);
	bpf_map_update_elem(&work_owners, &thread, &owner, BPF_ANY);
}

SEC("tp_btf/ext4_writepages")
int BPF_PROG(ext4_writepages, struct inode *inode)
{
	set_owner(inode, 1);
	return 0;
}

SEC("tp_btf/ext4_writepages_result")
int BPF_PROG(ext4_writepages_result, struct inode *inode)
{
	__u32 thread = thread_id();

	if (is_kernel_thread())
		bpf_map_delete_elem(&work_owners, &thread);
	return 0;
}

SEC("tp_btf/ext4_mark_inode_dirty")
int BPF_PROG(ext4_mark_inode_dirty, struct inode *inode)
{
	set_owner(inode, 0);
	return 0;
}

/* Conversion of unwritten extents after their data was written: it dirties extent blocks before the inode. */
SEC("tp_btf/ext4_ext_handle_unwritten_extents")
int BPF_PROG(ext4_ext_handle_unwritten_extents, struct inode *inode)
{
	set_owner(inode, 0);
	return 0;
}

SEC("tp_btf/jbd2_handle_stats")
int BPF_PROG(jbd2_handle_stats, __u32 dev, __u32 tid, unsigned int type, unsigned int line_no, int interval, int sync,
	     int requested_blocks, int dirtied_blocks)
{
	__u64 cgroup = owner(true);

	if (dirtied_blocks > 0)
		add_share(dev, tid, SHARE_DIRTIED, cgroup, dirtied_blocks);
	return 0;
}

/*
 * The next two programs attach to functions of jbd2, not to tracepoints. A kernel may refuse them; sys::bpf then loads the
 * others alone.
 *
 * A handle that restarts leaves its transaction without a jbd2_handle_stats event.
 */
SEC("fentry/jbd2__journal_restart")
int BPF_PROG(handle_restarts, struct jbd2_journal_handle *handle)
{
	struct transaction_s *transaction = handle->h_transaction;
	int dirtied = handle->h_requested_credits - handle->h_total_credits;

	if (transaction && dirtied > 0)
		add_share(transaction->t_journal->j_fs_dev->bd_dev, transaction->t_tid,
			  SHARE_DIRTIED, owner(false), dirtied);
	return 0;
}

/* Another cgroup dirties a block in the same transaction: earlier owners cede equal parts, so that all shares are equal. */
static __always_inline void add_owner(struct block *block, __u32 dev, __u64 cgroup)
{
	__u32 n_owners = block->n_owners;

	if (n_owners == 1 && block->owners[0] != cgroup) {
		add_share(dev, block->tid, SHARE_CEDED, block->owners[0], SIXTHS / 2);
		add_share(dev, block->tid, SHARE_JOINED, cgroup, SIXTHS / 2);
		block->owners[1] = cgroup;
		block->n_owners = 2;
	} else if (n_owners == 2 && block->owners[0] != cgroup && block->owners[1] != cgroup) {
		add_share(dev, block->tid, SHARE_CEDED, block->owners[0], SIXTHS / 2 - SIXTHS / 3);
		add_share(dev, block->tid, SHARE_CEDED, block->owners[1], SIXTHS / 2 - SIXTHS / 3);
		add_share(dev, block->tid, SHARE_JOINED, cgroup, SIXTHS / 3);
		block->owners[2] = cgroup;
		block->n_owners = 3;
	}
}

/*
 * Corrects the first-dirtier rule: a block dirtied by several cgroups in one transaction is shared in equal parts, and the cost
 * of logging a block again before the commit timer was due belongs to the cgroups that forced the commits in between.
 */
SEC("fentry/jbd2_journal_dirty_metadata")
int BPF_PROG(block_dirtied, struct jbd2_journal_handle *handle, struct buffer_head *bh)
{
	struct transaction_s *transaction = handle->h_transaction;
	struct journal_head *head = bh->b_private;
	struct block block = {}, *before;
	struct block_key key = {};
	struct recent *recent;
	__u64 cgroup;
	__u32 slot;

	if (!transaction || !head)
		return 0;
	key.block = bh->b_blocknr;
	block.tid = transaction->t_tid;
	cgroup = owner(false);
	slot = (key.block ^ key.block >> 8) % N_RECENT;
	recent = bpf_map_lookup_elem(&recents, &slot);
	if (!recent || (recent->transaction == (__u64)transaction && recent->block == key.block && recent->cgroup == cgroup &&
			recent->tid == block.tid))
		return 0;
	recent->transaction = (__u64)transaction;
	recent->block = key.block;
	recent->cgroup = cgroup;
	recent->tid = block.tid;
	key.dev = transaction->t_journal->j_fs_dev->bd_dev;
	before = bpf_map_lookup_elem(&blocks, &key);
	/* jbd2 counts a block in the first handle of a transaction that dirties it. */
	if (BPF_CORE_READ(head, b_modified)) {
		if (before && before->tid == block.tid)
			add_owner(before, key.dev, cgroup);
		return 0;
	}
	block.mounted_ns = BPF_CORE_READ(transaction, t_journal, j_task, start_time);
	block.owners[0] = cgroup;
	block.n_owners = 1;
	block.jiffies = bpf_jiffies64();
	if (before && before->mounted_ns == block.mounted_ns && before->tid != block.tid &&
	    block.jiffies - before->jiffies < transaction->t_journal->j_commit_interval) {
		struct share_key share = { .cgroup = cgroup, .dev = key.dev, .tid = block.tid, .kind = SHARE_AGAIN };

		/* The interval still counts from the first time: the commit timer would have been due at its end. */
		block.jiffies = before->jiffies;
		share.since = before->tid;
		if (block.tid - share.since > SHARE_SINCE_MAX)
			share.since = block.tid - SHARE_SINCE_MAX;
		add_share_key(&share, 1);
	}
	bpf_map_update_elem(&blocks, &key, &block, BPF_ANY);
	return 0;
}

/* Records the file system of a journal; both devices are the same unless the journal is external. */
static __always_inline void add_journal(__u32 dev, __u32 journal_dev)
{
	bpf_map_update_elem(&journals, &dev, &dev, BPF_ANY);
	bpf_map_update_elem(&journals, &journal_dev, &dev, BPF_ANY);
}

SEC("tp_btf/jbd2_start_commit")
int BPF_PROG(jbd2_start_commit, struct journal_s *journal, struct transaction_s *transaction)
{
	struct commit commit = {};

	if (!journal || !transaction)
		return 0;
	commit.dev = journal->j_fs_dev->bd_dev;
	commit.journal_dev = journal->j_dev->bd_dev;
	commit.tid = transaction->t_tid;
	commit.block_bytes = journal->j_blocksize;
	commit.begin_ns = transaction->t_start_time;
	commit.start_ns = bpf_ktime_get_ns();
	add_journal(commit.dev, commit.journal_dev);
	begin_commit(&commit);
	return 0;
}

SEC("tp_btf/jbd2_commit_flushing")
int BPF_PROG(jbd2_commit_flushing)
{
	commit_is_flushing();
	return 0;
}

SEC("tp_btf/jbd2_commit_logging")
int BPF_PROG(jbd2_commit_logging)
{
	commit_is_logging();
	return 0;
}

SEC("tp_btf/jbd2_end_commit")
int BPF_PROG(jbd2_end_commit)
{
	struct commit *commit = own_commit();

	if (commit)
		end_commit(commit, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/jbd2_drop_transaction")
int BPF_PROG(jbd2_drop_transaction, struct journal_s *journal, struct transaction_s *transaction)
{
	if (journal && transaction)
		report_dropped(journal->j_fs_dev->bd_dev, transaction->t_tid);
	return 0;
}

static __always_inline void start_writing(__u32 what)
{
	__u32 thread = thread_id(), *before = bpf_map_lookup_elem(&writing, &thread);

	if (before)
		what |= *before;
	bpf_map_update_elem(&writing, &thread, &what, BPF_ANY);
}

static __always_inline void end_writing(__u32 what)
{
	__u32 thread = thread_id(), *before = bpf_map_lookup_elem(&writing, &thread);

	if (before && *before == what)
		bpf_map_delete_elem(&writing, &thread);
	else if (before)
		*before &= ~what;
}

SEC("tp_btf/jbd2_write_superblock")
int BPF_PROG(jbd2_write_superblock, struct journal_s *journal)
{
	if (!journal)
		return 0;
	add_write(journal->j_fs_dev->bd_dev, WRITE_SUPERBLOCK, 0, journal->j_blocksize);
	/* Its bio is the next one of this thread, and is not counted again. */
	start_writing(WRITING_SUPERBLOCK);
	return 0;
}

SEC("tp_btf/ext4_fc_commit_start")
int BPF_PROG(ext4_fc_commit_start, struct super_block *sb)
{
	struct ext4_sb_info *ext4;
	struct journal_s *journal;

	if (!sb)
		return 0;
	ext4 = sb->s_fs_info;
	journal = BPF_CORE_READ(ext4, s_journal);
	add_journal(sb->s_dev, BPF_CORE_READ(journal, j_dev, bd_dev));
	start_writing(WRITING_FAST_COMMIT);
	return 0;
}

SEC("tp_btf/ext4_fc_commit_stop")
int BPF_PROG(ext4_fc_commit_stop)
{
	end_writing(WRITING_FAST_COMMIT);
	return 0;
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(block_bio_queue, struct bio *bio)
{
	__u32 thread, dev, *what, *fs_dev;
	unsigned int flags, bytes;
	struct commit *commit;

	if (!bio)
		return 0;
	flags = bio->bi_opf;
	if ((flags & REQ_OP_MASK) != REQ_OP_WRITE)
		return 0;
	bytes = bio->bi_iter.bi_size;
	thread = thread_id();
	dev = bio->bi_bdev->bd_dev;
	what = bpf_map_lookup_elem(&writing, &thread);
	if (what && *what & WRITING_SUPERBLOCK) {
		end_writing(WRITING_SUPERBLOCK);
		return 0;
	}
	commit = own_commit();
	if (commit) {
		/* Stacked devices resubmit the bio in the same thread, with another device number. */
		if (dev == commit->journal_dev && is_meta(flags)) {
			__sync_fetch_and_add(&commit->journal_bytes, bytes);
		} else if (dev == commit->dev && !is_meta(flags)) {
			__sync_fetch_and_add(&commit->ordered_bytes, bytes);
			add_share(dev, commit->tid, SHARE_ORDERED, owner(false), bytes);
		}
		return 0;
	}
	if (!is_meta(flags))
		return 0;
	fs_dev = bpf_map_lookup_elem(&journals, &dev);
	if (fs_dev)
		add_write(*fs_dev, what ? WRITE_FAST_COMMIT : WRITE_CHECKPOINT, bio_cgroup(bio), bytes);
	return 0;
}

SEC("tp_btf/ext4_sync_file_enter")
int BPF_PROG(ext4_sync_file_enter, struct file *file, int datasync)
{
	struct sync sync = { .datasync = datasync };
	__u32 thread = thread_id();
	struct inode *inode;

	if (!file)
		return 0;
	inode = file->f_inode;
	sync.inode = inode;
	sync.dev = inode->i_sb->s_dev;
	sync.cgroup = bpf_get_current_cgroup_id();
	sync.start_ns = bpf_ktime_get_ns();
	bpf_map_update_elem(&syncs, &thread, &sync, BPF_ANY);
	return 0;
}

SEC("tp_btf/ext4_sync_file_exit")
int BPF_PROG(ext4_sync_file_exit, struct inode *inode)
{
	__u32 thread = thread_id(), tid;
	struct sync *sync = bpf_map_lookup_elem(&syncs, &thread);
	struct ext4_inode_info *ext4;

	if (!sync)
		return 0;
	ext4 = (void *)sync->inode - bpf_core_field_offset(struct ext4_inode_info, vfs_inode);
	tid = sync->datasync ? BPF_CORE_READ(ext4, i_datasync_tid) : BPF_CORE_READ(ext4, i_sync_tid);
	report_sync(sync->dev, tid, sync->start_ns, sync->cgroup);
	bpf_map_delete_elem(&syncs, &thread);
	return 0;
}

/* A request is charged the device time since the previous completion, or since the device became busy. */
SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_rq_issue, struct request *request)
{
	__u64 address = (__u64)request;
	struct device *device;
	__u8 here = 1;
	__u32 dev;

	if (!request)
		return 0;
	dev = request->q->disk->part0->bd_dev;
	device = bpf_map_lookup_elem(&devices, &dev);
	if (!device) {
		struct device idle = {};

		bpf_map_update_elem(&devices, &dev, &idle, BPF_NOEXIST);
		device = bpf_map_lookup_elem(&devices, &dev);
		if (!device)
			return 0;
	}
	if (bpf_map_update_elem(&issued, &address, &here, BPF_NOEXIST)) {
		count_loss(LOSS_SERVICE_FULL);
		return 0;
	}
	if (__sync_fetch_and_add(&device->n_inflight, 1) == 0)
		device->last_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/block_rq_requeue")
int BPF_PROG(block_rq_requeue, struct request *request)
{
	__u64 address = (__u64)request;
	struct device *device;
	__u32 dev;

	if (!request)
		return 0;
	dev = request->q->disk->part0->bd_dev;
	device = bpf_map_lookup_elem(&devices, &dev);
	if (device && !bpf_map_delete_elem(&issued, &address))
		__sync_fetch_and_add(&device->n_inflight, -1);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *request, int error, unsigned int n_bytes)
{
	struct service_key key = {};
	struct service *service;
	unsigned int flags, op;
	__u64 address = (__u64)request, now, before;
	struct device *device;

	if (!request)
		return 0;
	flags = request->cmd_flags;
	op = flags & REQ_OP_MASK;
	key.dev = request->q->disk->part0->bd_dev;
	device = bpf_map_lookup_elem(&devices, &key.dev);
	if (!device || !bpf_map_lookup_elem(&issued, &address))
		return 0;
	now = bpf_ktime_get_ns();
	before = __sync_lock_test_and_set(&device->last_ns, now);
	/* The rest of a partially completed request has another event. */
	if (n_bytes >= request->__data_len && !bpf_map_delete_elem(&issued, &address))
		__sync_fetch_and_add(&device->n_inflight, -1);
	key.cgroup = bio_cgroup(request->bio);
	key.class = op == REQ_OP_FLUSH ? SERVICE_FLUSH : is_meta(flags) ? SERVICE_META : SERVICE_DATA;
	service = bpf_map_lookup_elem(&services, &key);
	if (!service) {
		struct service none = {};

		bpf_map_update_elem(&services, &key, &none, BPF_NOEXIST);
		service = bpf_map_lookup_elem(&services, &key);
		if (!service) {
			count_loss(LOSS_SERVICE_FULL);
			return 0;
		}
	}
	if (now > before)
		__sync_fetch_and_add(&service->busy_ns, now - before);
	__sync_fetch_and_add(&service->requests, 1);
	if (op == REQ_OP_WRITE || op == REQ_OP_ZONE_APPEND)
		__sync_fetch_and_add(&service->written_bytes, n_bytes);
	else if (op == REQ_OP_READ)
		__sync_fetch_and_add(&service->read_bytes, n_bytes);
	return 0;
}
