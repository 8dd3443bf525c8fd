/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0 */
/*
 * What the objects have in common. To be included behind their maps: losses, shares and writes.
 */
#ifndef BULKHEAD_COMMON_H
#define BULKHEAD_COMMON_H

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
	return bpf_get_current_task_btf()->flags & PF_KTHREAD;
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

static __always_inline void add_share_key(struct share_key *key, __u64 amount)
{
	bool is_dirtied = key->kind == SHARE_DIRTIED;

	if (add(&shares, key, amount))
		return;
	key->cgroup = 0;
	key->kind = SHARE_LOST;
	if (is_dirtied && add(&shares, key, amount))
		lost(LOSS_SHARES_FULL);
	else
		lost(LOSS_SHARES_GONE);
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
		lost(LOSS_WRITES_FULL);
}

/* The cgroup that an inode's write-back belongs to, else 0. */
static __always_inline __u64 writeback_owner(struct inode *inode)
{
	/* A memory cgroup, which may be deeper than the one that the io controller is enabled for. */
	__u64 cgroup = id_of(BPF_CORE_READ(inode, i_wb, memcg_css, cgroup));

	return cgroup ? cgroup : id_of(BPF_CORE_READ(inode, i_wb, blkcg_css, cgroup));
}

static __always_inline __u64 bio_cgroup(struct bio *bio)
{
	if (!bio)
		return 0;
	if (bpf_core_field_exists(bio->bi_blkg))
		return id_of(bio->bi_blkg->blkcg->css.cgroup);
	return id_of(((struct bio___blkcg *)bio)->bi_blkcg->css.cgroup);
}

static __always_inline bool is_meta(unsigned int flags)
{
	return flags & (1u << bpf_core_enum_value(enum req_flag_bits, __REQ_META));
}

#endif
