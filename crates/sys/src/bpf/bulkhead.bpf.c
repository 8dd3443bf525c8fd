// SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
/*
 * Who had which blocks in which commit, what the journal thread wrote for it, and who waited for it.
 *
 * Counts in maps what happens often (handles, requests) and reports through a ring buffer what happens per commit and per
 * fsync. Decides nothing: user space turns the figures into charges (core::attrib). Whatever finds no room is counted in
 * `losses`, so that user space can say how much is missing.
 *
 * Kernels from 6.12 on take a tracepoint's pointers for NULL until they are checked.
 */
#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "record.h"

/* The kernel offers probe_read_kernel to programs under a licence that it takes for compatible. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* A commit that its journal thread is working on. */
struct commit {
	__u64 begin_ns;
	__u64 start_ns;
	__u64 flush_ns;
	__u64 log_ns;
	__u64 journal_bytes;
	__u64 ordered_bytes;
	__u64 requester;
	__u32 dev;
	__u32 journal_dev;
	__u32 tid;
	__u32 block_bytes;
};

/* For whom a kernel thread is at work. */
struct errand {
	__u64 cgroup;
	__u64 in_writepages; /* the errand ends with writepages, not with the next handle */
};

struct sync {
	__u64 start_ns;
	__u64 cgroup;
	struct inode *inode; /* alive as long as its fsync runs */
	__u32 dev;
	__u32 datasync;
};

struct device {
	__u64 last_ns; /* up to here the device's time has been counted */
	__u64 n_inflight;
};

/* 96 bytes x 1024 = 0.1 MiB: one entry per commit in progress, key: pid of the journal thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct commit);
} commits SEC(".maps");

/* 80 bytes x 16384 = 1.3 MiB. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct share_key);
	__type(value, __u64);
} shares SEC(".maps");

/* 72 bytes x 8192 = 0.6 MiB. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct write_key);
	__type(value, __u64);
} writes SEC(".maps");

/* 96 bytes x 8192 = 0.8 MiB. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

/* The transaction that a block was last dirtied in. 5 MiB; the least recently used are forgotten: nobody is surcharged. */
struct block_key {
	__u64 block;
	__u32 dev;
	__u32 pad;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct block_key);
	__type(value, __u32);
} blocks SEC(".maps");

/* Who forced which commit, and when. */
struct forced_key {
	__u32 dev;
	__u32 tid;
};
struct forced {
	__u64 requester;
	__u64 jiffies;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct forced_key);
	__type(value, struct forced);
} forced SEC(".maps");

/* Devices with a request queue. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

/*
 * Requests under way, by address: completion is told for more than were issued (twice for one with a flush, kernel
 * blk_flush_complete_seq), and requeueing for some that never were.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u8);
} issued SEC(".maps");

/* Devices of file systems with a journal, and of journals: number of the file system's. User space enters those there are. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} journals SEC(".maps");

/* Key: pid of the kernel thread. Least recently used, because threads end unseen. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct errand);
} errands SEC(".maps");

/* What a thread is about to write: WRITING_* bits. */
#define WRITING_SUPERBLOCK 1u /* its next bio is the journal's superblock */
#define WRITING_FAST_COMMIT 2u /* until ext4_fc_commit_stop */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} writing SEC(".maps");

/* Calls of fsync in progress, by thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct sync);
} syncs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOSS_KINDS);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

/* 2 MiB: at 64 bytes a record, 30 000 fsyncs between two looks of user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 2 << 20);
} records SEC(".maps");

static __always_inline void lost(__u32 kind)
{
	__u64 *count = bpf_map_lookup_elem(&losses, &kind);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline __u32 thread_id(void)
{
	return (__u32)bpf_get_current_pid_tgid();
}

/* The id of a cgroup of the unified hierarchy, else 0. */
static __always_inline __u64 id_of(struct cgroup *cgroup)
{
	if (!cgroup || BPF_CORE_READ(cgroup, root, hierarchy_id) != 0)
		return 0;
	return BPF_CORE_READ(cgroup, kn, id);
}

static __always_inline bool is_kernel_thread(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();

	return BPF_CORE_READ(task, flags) & PF_KTHREAD;
}

/* Adds to a sum; returns false when there is no room for it. */
static __always_inline bool add(void *map, const void *key, __u64 amount)
{
	__u64 *sum = bpf_map_lookup_elem(map, key);

	if (!sum) {
		__u64 zero = 0;

		bpf_map_update_elem(map, key, &zero, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(map, key);
		if (!sum)
			return false;
	}
	__sync_fetch_and_add(sum, amount);
	return true;
}

static __always_inline void add_share(__u32 dev, __u32 tid, __u32 kind, __u64 cgroup, __u64 amount)
{
	struct share_key key = { .cgroup = cgroup, .dev = dev, .tid = tid, .kind = kind };

	if (add(&shares, &key, amount))
		return;
	key.cgroup = 0;
	key.kind = SHARE_LOST;
	if (kind == SHARE_DIRTIED && add(&shares, &key, amount))
		lost(LOSS_SHARES_FULL);
	else
		lost(LOSS_SHARES_GONE);
}

/* Whom the current thread works for: itself, or the owner of the inode that a kernel thread writes back. */
static __always_inline __u64 owner(bool ends_errand)
{
	__u32 thread = thread_id();
	struct errand *errand;
	__u64 cgroup;

	if (!is_kernel_thread())
		return bpf_get_current_cgroup_id();
	errand = bpf_map_lookup_elem(&errands, &thread);
	if (!errand)
		return bpf_get_current_cgroup_id();
	cgroup = errand->cgroup;
	if (ends_errand && !errand->in_writepages)
		bpf_map_delete_elem(&errands, &thread);
	return cgroup;
}

static __always_inline void start_errand(struct inode *inode, __u64 in_writepages)
{
	struct errand errand = { .in_writepages = in_writepages };
	__u32 thread = thread_id();
	struct errand *before;

	if (!inode || !is_kernel_thread())
		return;
	before = bpf_map_lookup_elem(&errands, &thread);
	if (!in_writepages && before && before->in_writepages)
		return;
	/* Write-back belongs to a memory cgroup, which may be deeper than the one that the io controller is enabled for. */
	errand.cgroup = id_of(BPF_CORE_READ(inode, i_wb, memcg_css, cgroup));
	if (!errand.cgroup)
		errand.cgroup = id_of(BPF_CORE_READ(inode, i_wb, blkcg_css, cgroup));
	bpf_map_update_elem(&errands, &thread, &errand, BPF_ANY);
}

SEC("tp_btf/ext4_writepages")
int BPF_PROG(ext4_writepages, struct inode *inode)
{
	start_errand(inode, 1);
	return 0;
}

SEC("tp_btf/ext4_writepages_result")
int BPF_PROG(ext4_writepages_result, struct inode *inode)
{
	__u32 thread = thread_id();

	if (is_kernel_thread())
		bpf_map_delete_elem(&errands, &thread);
	return 0;
}

SEC("tp_btf/ext4_mark_inode_dirty")
int BPF_PROG(ext4_mark_inode_dirty, struct inode *inode)
{
	start_errand(inode, 0);
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
 * The following two are functions of jbd2, not tracepoints: a kernel may refuse them (sys::bpf loads the rest without).
 *
 * A handle that restarts leaves its transaction without the event above.
 */
SEC("fentry/jbd2__journal_restart")
int BPF_PROG(handle_restarts, struct jbd2_journal_handle *handle)
{
	struct transaction_s *transaction = BPF_CORE_READ(handle, h_transaction);
	int dirtied = BPF_CORE_READ(handle, h_requested_credits) - BPF_CORE_READ(handle, h_total_credits);

	if (transaction && dirtied > 0)
		add_share(BPF_CORE_READ(transaction, t_journal, j_fs_dev, bd_dev), BPF_CORE_READ(transaction, t_tid),
			  SHARE_DIRTIED, owner(false), dirtied);
	return 0;
}

/*
 * The early-commit surcharge: a block that is logged again although no commit by the timer was due since it was logged last
 * is logged once more because of who forced that commit.
 */
SEC("fentry/jbd2_journal_dirty_metadata")
int BPF_PROG(block_dirtied, struct jbd2_journal_handle *handle, struct buffer_head *bh)
{
	struct transaction_s *transaction = BPF_CORE_READ(handle, h_transaction);
	struct journal_head *head = BPF_CORE_READ(bh, b_private);
	struct forced_key forced_key = {};
	struct block_key key = {};
	struct journal_s *journal;
	struct forced *by;
	__u32 tid, *before;
	__u64 cgroup;

	/* Only the handle that is the first in its transaction to dirty a block pays for it. */
	if (!transaction || !head || BPF_CORE_READ(head, b_modified))
		return 0;
	journal = BPF_CORE_READ(transaction, t_journal);
	tid = BPF_CORE_READ(transaction, t_tid);
	key.block = BPF_CORE_READ(bh, b_blocknr);
	key.dev = BPF_CORE_READ(journal, j_fs_dev, bd_dev);
	before = bpf_map_lookup_elem(&blocks, &key);
	if (before && *before != tid) {
		forced_key.dev = key.dev;
		forced_key.tid = *before;
		by = bpf_map_lookup_elem(&forced, &forced_key);
		cgroup = owner(false);
		if (by && by->requester != cgroup &&
		    bpf_jiffies64() - by->jiffies < BPF_CORE_READ(journal, j_commit_interval)) {
			add_share(key.dev, tid, SHARE_AGAIN, cgroup, 1);
			add_share(key.dev, tid, SHARE_EARLY, by->requester, 1);
		}
	}
	bpf_map_update_elem(&blocks, &key, &tid, BPF_ANY);
	return 0;
}

/* Remembers which file system a journal belongs to; the two devices are the same one unless the journal is external. */
static __always_inline void know_journal(__u32 dev, __u32 journal_dev)
{
	bpf_map_update_elem(&journals, &dev, &dev, BPF_ANY);
	bpf_map_update_elem(&journals, &journal_dev, &dev, BPF_ANY);
}

/* Looks for the fsync that forced a commit: the longest-running one whose file this transaction changed. */
struct search {
	__u64 start_ns;
	__u64 cgroup;
	__u32 dev;
	__u32 tid;
};

static long search_requester(void *map, const __u32 *thread, struct sync *sync, struct search *search)
{
	struct ext4_inode_info *ext4;
	__u32 tid;

	if (sync->dev != search->dev || sync->start_ns >= search->start_ns)
		return 0;
	ext4 = (void *)sync->inode - bpf_core_field_offset(struct ext4_inode_info, vfs_inode);
	tid = sync->datasync ? BPF_CORE_READ(ext4, i_datasync_tid) : BPF_CORE_READ(ext4, i_sync_tid);
	if (tid != search->tid)
		return 0;
	search->start_ns = sync->start_ns;
	search->cgroup = sync->cgroup;
	return 0;
}

SEC("tp_btf/jbd2_start_commit")
int BPF_PROG(jbd2_start_commit, struct journal_s *journal, struct transaction_s *transaction)
{
	struct share_key lost_key = { .kind = SHARE_LOST };
	struct search search = { .start_ns = ~0ULL };
	__u64 zero = 0;
	__u32 thread = thread_id(), dev;
	struct commit commit = {};

	if (!journal || !transaction)
		return 0;
	dev = BPF_CORE_READ(journal, j_fs_dev, bd_dev);
	search.dev = dev;
	search.tid = BPF_CORE_READ(transaction, t_tid);
	commit.journal_dev = BPF_CORE_READ(journal, j_dev, bd_dev);
	know_journal(dev, commit.journal_dev);
	bpf_for_each_map_elem(&syncs, search_requester, &search, 0);
	commit.begin_ns = BPF_CORE_READ(transaction, t_start_time);
	commit.start_ns = bpf_ktime_get_ns();
	/* So that there is room for blocks of the next transaction whose owners' entries find none. */
	lost_key.dev = dev;
	lost_key.tid = search.tid + 1;
	bpf_map_update_elem(&shares, &lost_key, &zero, BPF_NOEXIST);
	commit.requester = search.cgroup;
	if (commit.requester) {
		struct forced_key key = { .dev = dev, .tid = search.tid };
		struct forced by = { .requester = commit.requester, .jiffies = bpf_jiffies64() };

		bpf_map_update_elem(&forced, &key, &by, BPF_ANY);
	}
	commit.dev = dev;
	commit.tid = search.tid;
	commit.block_bytes = BPF_CORE_READ(journal, j_blocksize);
	if (bpf_map_update_elem(&commits, &thread, &commit, BPF_ANY))
		lost(LOSS_COMMITS_FULL);
	return 0;
}

SEC("tp_btf/jbd2_commit_flushing")
int BPF_PROG(jbd2_commit_flushing)
{
	__u32 thread = thread_id();
	struct commit *commit = bpf_map_lookup_elem(&commits, &thread);

	if (commit)
		commit->flush_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/jbd2_commit_logging")
int BPF_PROG(jbd2_commit_logging)
{
	__u32 thread = thread_id();
	struct commit *commit = bpf_map_lookup_elem(&commits, &thread);

	if (commit)
		commit->log_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/jbd2_end_commit")
int BPF_PROG(jbd2_end_commit)
{
	__u32 thread = thread_id();
	struct commit *commit = bpf_map_lookup_elem(&commits, &thread);
	struct commit_record *record;

	if (!commit)
		return 0;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (record) {
		record->type = RECORD_COMMIT;
		record->dev = commit->dev;
		record->tid = commit->tid;
		record->begin_ns = commit->begin_ns;
		record->start_ns = commit->start_ns;
		record->flush_ns = commit->flush_ns;
		record->log_ns = commit->log_ns;
		record->end_ns = bpf_ktime_get_ns();
		record->journal_bytes = commit->journal_bytes;
		record->ordered_bytes = commit->ordered_bytes;
		record->requester = commit->requester;
		record->block_bytes = commit->block_bytes;
		bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	} else {
		lost(LOSS_RING_FULL);
	}
	bpf_map_delete_elem(&commits, &thread);
	return 0;
}

SEC("tp_btf/jbd2_drop_transaction")
int BPF_PROG(jbd2_drop_transaction, struct journal_s *journal, struct transaction_s *transaction)
{
	struct dropped_record *record;

	if (!journal || !transaction)
		return 0;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		lost(LOSS_RING_FULL);
		return 0;
	}
	record->type = RECORD_DROPPED;
	record->dev = BPF_CORE_READ(journal, j_fs_dev, bd_dev);
	record->tid = BPF_CORE_READ(transaction, t_tid);
	record->pad = 0;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
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

static __always_inline void add_write(__u32 dev, __u32 kind, __u64 cgroup, __u64 bytes)
{
	struct write_key key = { .cgroup = cgroup, .dev = dev, .kind = kind };

	if (!add(&writes, &key, bytes))
		lost(LOSS_WRITES_FULL);
}

SEC("tp_btf/jbd2_write_superblock")
int BPF_PROG(jbd2_write_superblock, struct journal_s *journal)
{
	if (!journal)
		return 0;
	add_write(BPF_CORE_READ(journal, j_fs_dev, bd_dev), WRITE_SUPERBLOCK, 0, BPF_CORE_READ(journal, j_blocksize));
	/* Its bio, which is the thread's next, is not counted again. */
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
	ext4 = BPF_CORE_READ(sb, s_fs_info);
	journal = BPF_CORE_READ(ext4, s_journal);
	know_journal(BPF_CORE_READ(sb, s_dev), BPF_CORE_READ(journal, j_dev, bd_dev));
	start_writing(WRITING_FAST_COMMIT);
	return 0;
}

SEC("tp_btf/ext4_fc_commit_stop")
int BPF_PROG(ext4_fc_commit_stop)
{
	end_writing(WRITING_FAST_COMMIT);
	return 0;
}

static __always_inline __u64 bio_cgroup(struct bio *bio)
{
	if (!bio)
		return 0;
	if (bpf_core_field_exists(bio->bi_blkg))
		return id_of(BPF_CORE_READ(bio, bi_blkg, blkcg, css.cgroup));
	return id_of(BPF_CORE_READ((struct bio___blkcg *)bio, bi_blkcg, css.cgroup));
}

static __always_inline bool is_meta(unsigned int flags)
{
	return flags & (1u << bpf_core_enum_value(enum req_flag_bits, __REQ_META));
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(block_bio_queue, struct bio *bio)
{
	__u32 thread, dev, *what, *fs_dev;
	unsigned int flags, bytes;
	struct commit *commit;

	if (!bio)
		return 0;
	flags = BPF_CORE_READ(bio, bi_opf);
	if ((flags & REQ_OP_MASK) != REQ_OP_WRITE)
		return 0;
	bytes = BPF_CORE_READ(bio, bi_iter.bi_size);
	thread = thread_id();
	dev = BPF_CORE_READ(bio, bi_bdev, bd_dev);
	what = bpf_map_lookup_elem(&writing, &thread);
	if (what && *what & WRITING_SUPERBLOCK) {
		end_writing(WRITING_SUPERBLOCK);
		return 0;
	}
	commit = bpf_map_lookup_elem(&commits, &thread);
	if (commit) {
		/* Stacked devices hand the bio on in the same thread, under other numbers. */
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
	inode = BPF_CORE_READ(file, f_inode);
	sync.inode = inode;
	sync.dev = BPF_CORE_READ(inode, i_sb, s_dev);
	sync.cgroup = bpf_get_current_cgroup_id();
	sync.start_ns = bpf_ktime_get_ns();
	bpf_map_update_elem(&syncs, &thread, &sync, BPF_ANY);
	return 0;
}

SEC("tp_btf/ext4_sync_file_exit")
int BPF_PROG(ext4_sync_file_exit, struct inode *inode)
{
	__u32 thread = thread_id();
	struct sync *sync = bpf_map_lookup_elem(&syncs, &thread);
	struct ext4_inode_info *ext4;
	struct sync_record *record;

	if (!sync)
		return 0;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (record) {
		ext4 = (void *)sync->inode - bpf_core_field_offset(struct ext4_inode_info, vfs_inode);
		record->type = RECORD_SYNC;
		record->dev = sync->dev;
		record->tid = sync->datasync ? BPF_CORE_READ(ext4, i_datasync_tid) : BPF_CORE_READ(ext4, i_sync_tid);
		record->pad = 0;
		record->start_ns = sync->start_ns;
		record->end_ns = bpf_ktime_get_ns();
		record->cgroup = sync->cgroup;
		bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	} else {
		lost(LOSS_RING_FULL);
	}
	bpf_map_delete_elem(&syncs, &thread);
	return 0;
}

/* Device time goes to the request that ends it: from the end of the one before, or from when the device became busy. */
SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_rq_issue, struct request *request)
{
	__u64 address = (__u64)request;
	struct device *device;
	__u8 here = 1;
	__u32 dev;

	if (!request)
		return 0;
	dev = BPF_CORE_READ(request, q, disk, part0, bd_dev);
	device = bpf_map_lookup_elem(&devices, &dev);
	if (!device) {
		struct device idle = {};

		bpf_map_update_elem(&devices, &dev, &idle, BPF_NOEXIST);
		device = bpf_map_lookup_elem(&devices, &dev);
		if (!device)
			return 0;
	}
	if (bpf_map_update_elem(&issued, &address, &here, BPF_NOEXIST)) {
		lost(LOSS_SERVICE_FULL);
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
	dev = BPF_CORE_READ(request, q, disk, part0, bd_dev);
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
	flags = BPF_CORE_READ(request, cmd_flags);
	op = flags & REQ_OP_MASK;
	key.dev = BPF_CORE_READ(request, q, disk, part0, bd_dev);
	device = bpf_map_lookup_elem(&devices, &key.dev);
	if (!device || !bpf_map_lookup_elem(&issued, &address))
		return 0;
	now = bpf_ktime_get_ns();
	before = __sync_lock_test_and_set(&device->last_ns, now);
	/* The rest of a partly completed request is completed by another event. */
	if (n_bytes >= BPF_CORE_READ(request, __data_len) && !bpf_map_delete_elem(&issued, &address))
		__sync_fetch_and_add(&device->n_inflight, -1);
	key.cgroup = bio_cgroup(BPF_CORE_READ(request, bio));
	key.class = op == REQ_OP_FLUSH ? SERVICE_FLUSH : is_meta(flags) ? SERVICE_META : SERVICE_DATA;
	service = bpf_map_lookup_elem(&services, &key);
	if (!service) {
		struct service none = {};

		bpf_map_update_elem(&services, &key, &none, BPF_NOEXIST);
		service = bpf_map_lookup_elem(&services, &key);
		if (!service) {
			lost(LOSS_SERVICE_FULL);
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
