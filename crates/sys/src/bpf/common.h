/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0 */
/*
 * Shared by the objects that account journals: sums by cgroup, traced devices, and owners of inodes.
 */
#ifndef BULKHEAD_COMMON_H
#define BULKHEAD_COMMON_H

#include "helpers.h"

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

/* Devices of journaled file systems and of their journals, to the file system's device. User space enters existing ones. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} journals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOSS_KINDS);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

static __always_inline void count_loss(__u32 kind)
{
	__u64 *count = bpf_map_lookup_elem(&losses, &kind);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline bool is_kernel_thread(void)
{
	return bpf_get_current_task_btf()->flags & PF_KTHREAD;
}

static __always_inline void add_share_key(struct share_key *key, __u64 amount)
{
	bool is_dirtied = key->kind == SHARE_DIRTIED;

	if (add(&shares, key, amount))
		return;
	key->cgroup = 0;
	key->kind = SHARE_LOST;
	if (is_dirtied && add(&shares, key, amount))
		count_loss(LOSS_SHARES_FULL);
	else
		count_loss(LOSS_SHARES_GONE);
}

static __always_inline void add_share(__u32 dev, __u32 tid, __u32 kind, __u64 cgroup, __u64 amount)
{
	struct share_key key = { .cgroup = cgroup, .dev = dev, .tid = tid, .kind = kind };

	add_share_key(&key, amount);
}

static __always_inline void add_write(__u32 dev, __u32 kind, __u64 cgroup, __u64 bytes)
{
	struct write_key key = { .cgroup = cgroup, .dev = dev, .kind = kind };

	if (!add(&writes, &key, bytes))
		count_loss(LOSS_WRITES_FULL);
}

/* The cgroup that an inode's writeback belongs to, else 0. */
static __always_inline __u64 writeback_owner(struct inode *inode)
{
	/* The memory cgroup, which may be a descendant of the one that the io controller is enabled for. */
	__u64 cgroup = cgroup_id(BPF_CORE_READ(inode, i_wb, memcg_css, cgroup));

	return cgroup ? cgroup : cgroup_id(BPF_CORE_READ(inode, i_wb, blkcg_css, cgroup));
}

static __always_inline bool is_meta(unsigned int flags)
{
	return flags & (1u << bpf_core_enum_value(enum req_flag_bits, __REQ_META));
}

#endif
