// SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
/*
 * Ownership of changes in each checkpoint of an XFS log, and bytes written to that log.
 *
 * XFS collects changes in memory (the CIL) as log vectors, one per changed item, and writes them as a checkpoint. A cgroup's
 * share is the growth of those vectors by its transactions. A checkpoint writes all its vectors to the log, plus record headers
 * and padding. No policy: core::observe::log turns the figures into charges.
 *
 * A separate object, because it can be loaded only if xfs is present.
 */
#include "common.h"

#include <bpf/bpf_tracing.h>

/* More items than any transaction has; the largest have some hundreds. */
#define MAX_ITEMS 4096

/*
 * A checkpoint of a mount. Sequence numbers restart at one with each mount, and addresses are reused; the start time of the
 * kernel thread xfsaild identifies the mount.
 */
struct checkpoint {
	__u64 mounted_ns;
	__s64 sequence;
};

/* Size of an item's log vector, and its checkpoint. */
struct item {
	struct checkpoint checkpoint;
	__u64 bytes;
};

/* An iclog being written. */
struct log_write {
	__u64 requester;
	__u64 active_bytes;
	__u32 dev;
	__u32 log_dev;
	__u32 checkpoint;
	__u32 overhead_bytes;
	__u32 header_bytes;
	__u32 iclog_bytes;
};

/* 96 bytes x 32768 = 3 MiB. LRU, because freeing of items is not traced. Key: the item's address. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, __u64);
	__type(value, struct item);
} items SEC(".maps");

/* Key: address of the iclog's bio. A file system has two to eight iclogs. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct log_write);
} iclogs SEC(".maps");

/* The first cgroup that forced a checkpoint while it was open. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct checkpoint);
	__type(value, __u64);
} requesters SEC(".maps");

/* The cgroup that dropped the last reference to an inode which a kernel thread will inactivate. Key: its address. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u64);
} inactive SEC(".maps");

/* The cgroup on whose behalf a kernel thread works, until it allocates a new transaction (rolled ones keep it). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} work_owners SEC(".maps");

/* 1 MiB: 16 000 log writes between two polls by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

/* A walk over the items of a transaction. */
struct walk {
	__u64 node; /* address of the next item's list_head */
	__u64 head; /* address of the list's head */
	struct checkpoint checkpoint;
	__s64 growth;
	__u64 owner;
	__u64 wants_owner;
};

static __always_inline __u32 fs_dev(struct xfs_mount *mount)
{
	return BPF_CORE_READ(mount, m_super, s_dev);
}

/* A checkpoint of a mount. */
static __always_inline struct checkpoint checkpoint_of(struct xfs_mount *mount, __s64 sequence)
{
	struct checkpoint checkpoint = { .sequence = sequence };

	checkpoint.mounted_ns = BPF_CORE_READ(mount, m_ail, ail_task, start_time);
	return checkpoint;
}

static __always_inline bool is_same(const struct checkpoint *one, const struct checkpoint *other)
{
	return one->sequence == other->sequence && one->mounted_ns == other->mounted_ns;
}

/* The cgroup on whose behalf a kernel thread changes an inode; 0 if unknown. */
static __always_inline __u64 inode_owner(struct xfs_log_item *item)
{
	struct xfs_inode_log_item *of_inode = (void *)item - bpf_core_field_offset(struct xfs_inode_log_item, ili_item);
	struct xfs_inode *xfs_inode = BPF_CORE_READ(of_inode, ili_inode);
	struct inode *inode = (void *)xfs_inode + bpf_core_field_offset(struct xfs_inode, i_vnode);
	__u64 address = (__u64)xfs_inode, *dropped_by;

	if (BPF_CORE_READ(inode, i_wb))
		return writeback_owner(inode);
	/* An inode under inactivation has no writeback owner any more. */
	dropped_by = bpf_map_lookup_elem(&inactive, &address);
	return dropped_by ? *dropped_by : 0;
}

/* Atomic, so that the verifier does not track the sum's bounds across items; otherwise it would not converge. */
static __always_inline void grow(struct walk *walk, __s64 bytes)
{
	__sync_fetch_and_add(&walk->growth, bytes);
}

static long visit(__u32 index, struct walk *walk)
{
	struct list_head *node = (void *)walk->node;
	struct xfs_log_item *item;
	struct item *known, new;
	unsigned long flags;
	__u64 address;
	__s32 bytes;

	if (!node || walk->node == walk->head)
		return 1;
	item = (void *)node - bpf_core_field_offset(struct xfs_log_item, li_trans);
	walk->node = (__u64)BPF_CORE_READ(node, next);
	if (walk->wants_owner && !walk->owner && BPF_CORE_READ(item, li_type) == XFS_LI_INODE)
		walk->owner = inode_owner(item);
	flags = BPF_CORE_READ(item, li_flags);
	if (!(flags & XFS_LI_DIRTY))
		return 0;
	/* 0 if there was nothing to format. */
	bytes = BPF_CORE_READ(item, li_lv, lv_bytes);
	if (bytes <= 0)
		return 0;
	address = (__u64)item;
	known = bpf_map_lookup_elem(&items, &address);
	if (known) {
		if (is_same(&known->checkpoint, &walk->checkpoint))
			grow(walk, -(__s64)known->bytes);
		known->checkpoint = walk->checkpoint;
		known->bytes = bytes;
	} else {
		new.checkpoint = walk->checkpoint;
		new.bytes = bytes;
		bpf_map_update_elem(&items, &address, &new, BPF_ANY);
	}
	grow(walk, bytes);
	return 0;
}

static __always_inline __u64 transaction_owner(struct walk *walk)
{
	__u32 thread = thread_id();
	__u64 *owner;

	if (!walk->wants_owner)
		return bpf_get_current_cgroup_id();
	if (walk->owner) {
		bpf_map_update_elem(&work_owners, &thread, &walk->owner, BPF_ANY);
		return walk->owner;
	}
	owner = bpf_map_lookup_elem(&work_owners, &thread);
	return owner ? *owner : 0;
}

/* The transaction's items are in the checkpoint, which stays open while this runs. */
SEC("tp_btf/xfs_trans_commit_items")
int BPF_PROG(xfs_trans_commit_items, struct xfs_trans *transaction)
{
	struct xfs_mount *mount;
	struct walk walk = {};

	if (!transaction)
		return 0;
	mount = BPF_CORE_READ(transaction, t_mountp);
	walk.head = (__u64)transaction + bpf_core_field_offset(struct xfs_trans, t_items);
	walk.node = (__u64)BPF_CORE_READ(transaction, t_items.next);
	walk.checkpoint = checkpoint_of(mount, BPF_CORE_READ(mount, m_log, l_cilp, xc_ctx, sequence));
	walk.wants_owner = is_kernel_thread();
	if (bpf_loop(MAX_ITEMS, visit, &walk, 0) == MAX_ITEMS)
		count_loss(LOSS_SHARES_GONE);
	/* Growth is negative if items shrank. It was added before, nearly always to the same cgroup. */
	if (walk.growth)
		add_share(fs_dev(mount), (__u32)walk.checkpoint.sequence, SHARE_LOGGED, transaction_owner(&walk),
			  (__u64)walk.growth);
	return 0;
}

/* A new transaction, not one rolled from another. */
SEC("tp_btf/xfs_trans_alloc")
int BPF_PROG(xfs_trans_alloc)
{
	__u32 thread = thread_id();

	if (is_kernel_thread())
		bpf_map_delete_elem(&work_owners, &thread);
	return 0;
}

/* An intent that completes in the checkpoint that logged it is not written (whiteout). */
SEC("tp_btf/xfs_cil_whiteout_mark")
int BPF_PROG(xfs_cil_whiteout_mark, struct xfs_log_item *item)
{
	__u64 address = (__u64)item, owner;
	struct xfs_mount *mount;
	struct walk walk = {};
	struct item *known;
	struct xlog *log;

	if (!item)
		return 0;
	log = BPF_CORE_READ(item, li_log);
	mount = BPF_CORE_READ(log, l_mp);
	walk.checkpoint = checkpoint_of(mount, BPF_CORE_READ(log, l_cilp, xc_ctx, sequence));
	walk.wants_owner = is_kernel_thread();
	known = bpf_map_lookup_elem(&items, &address);
	if (!known || !is_same(&known->checkpoint, &walk.checkpoint))
		return 0;
	owner = transaction_owner(&walk);
	add_share(fs_dev(mount), (__u32)walk.checkpoint.sequence, SHARE_LOGGED, owner, -known->bytes);
	bpf_map_delete_elem(&items, &address);
	return 0;
}

SEC("tp_btf/xfs_inode_set_need_inactive")
int BPF_PROG(xfs_inode_set_need_inactive, struct xfs_inode *inode)
{
	__u64 address = (__u64)inode, owner = bpf_get_current_cgroup_id();

	if (inode && !is_kernel_thread())
		bpf_map_update_elem(&inactive, &address, &owner, BPF_ANY);
	return 0;
}

SEC("tp_btf/xfs_log_force")
int BPF_PROG(xfs_log_force, struct xfs_mount *mount, __s64 sequence)
{
	__u64 cgroup = bpf_get_current_cgroup_id();
	struct checkpoint key;

	/* A closed checkpoint is being written anyway. */
	if (!mount || !sequence || is_kernel_thread() ||
	    sequence != BPF_CORE_READ(mount, m_log, l_cilp, xc_current_sequence))
		return 0;
	key = checkpoint_of(mount, sequence);
	bpf_map_update_elem(&requesters, &key, &cgroup, BPF_NOEXIST);
	return 0;
}

/* Size of the active part of the log: changes not yet written in place. */
static __always_inline __u64 active_bytes(struct xlog *log)
{
	__u64 tail = BPF_CORE_READ(log, l_tail_lsn.counter);
	__u32 head_cycle = BPF_CORE_READ(log, l_curr_cycle), size = BPF_CORE_READ(log, l_logBBsize);
	__u32 head = BPF_CORE_READ(log, l_curr_block), distance = head - (__u32)tail;

	if (head_cycle != (__u32)(tail >> 32))
		distance += size;
	return distance <= size ? (__u64)distance * BASIC_BLOCK_BYTES : (__u64)size * BASIC_BLOCK_BYTES;
}

SEC("tp_btf/xlog_iclog_write")
int BPF_PROG(xlog_iclog_write, struct xlog_in_core *iclog)
{
	struct log_write write = {};
	__u64 address, *requester;
	struct xfs_mount *mount;
	struct checkpoint key;
	struct xlog *log;

	if (!iclog)
		return 0;
	address = (__u64)iclog + bpf_core_field_offset(struct xlog_in_core, ic_bio);
	log = BPF_CORE_READ(iclog, ic_log);
	mount = BPF_CORE_READ(log, l_mp);
	/* The newest closed checkpoint. */
	key = checkpoint_of(mount, BPF_CORE_READ(log, l_cilp, xc_ctx, sequence) - 1);
	write.dev = fs_dev(mount);
	write.log_dev = BPF_CORE_READ(log, l_targ, bt_bdev, bd_dev);
	write.checkpoint = (__u32)key.sequence;
	write.active_bytes = active_bytes(log);
	write.header_bytes = BPF_CORE_READ(log, l_iclog_hsize);
	write.iclog_bytes = BPF_CORE_READ(log, l_iclog_size);
	/* Per checkpoint, beyond the vectors: a header, the commit record, and padding after it. */
	write.overhead_bytes = write.header_bytes + BASIC_BLOCK_BYTES + BPF_CORE_READ(log, l_iclog_roundoff);
	requester = bpf_map_lookup_elem(&requesters, &key);
	write.requester = requester ? *requester : 0;
	bpf_map_update_elem(&journals, &write.dev, &write.dev, BPF_ANY);
	bpf_map_update_elem(&iclogs, &address, &write, BPF_ANY);
	return 0;
}

static __always_inline void report(const struct log_write *write, __u32 bytes)
{
	struct log_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		count_loss(LOSS_RING_FULL);
		return;
	}
	record->type = RECORD_LOG;
	record->dev = write->dev;
	record->checkpoint = write->checkpoint;
	record->at_ns = bpf_ktime_get_ns();
	record->requester = write->requester;
	record->active_bytes = write->active_bytes;
	record->bytes = bytes;
	record->overhead_bytes = write->overhead_bytes;
	record->header_bytes = write->header_bytes;
	record->iclog_bytes = write->iclog_bytes;
	record->pad = 0;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(xfs_bio_queue, struct bio *bio)
{
	unsigned int flags, bytes;
	struct log_write *write;
	__u32 dev, *fs;
	__u64 address;

	if (!bio)
		return 0;
	flags = BPF_CORE_READ(bio, bi_opf);
	if ((flags & REQ_OP_MASK) != REQ_OP_WRITE || !is_meta(flags))
		return 0;
	bytes = BPF_CORE_READ(bio, bi_iter.bi_size);
	dev = BPF_CORE_READ(bio, bi_bdev, bd_dev);
	address = (__u64)bio;
	write = bpf_map_lookup_elem(&iclogs, &address);
	if (!write) {
		/* At the end of the log an iclog is split: the first part is a bio chained to the iclog's own. */
		address = (__u64)BPF_CORE_READ(bio, bi_private);
		write = bpf_map_lookup_elem(&iclogs, &address);
	}
	if (write && write->log_dev == dev) {
		report(write, bytes);
		add_write(write->dev, WRITE_LOG, bio_cgroup(bio), bytes);
		return 0;
	}
	fs = bpf_map_lookup_elem(&journals, &dev);
	if (fs)
		add_write(*fs, WRITE_CHECKPOINT, bio_cgroup(bio), bytes);
	return 0;
}
