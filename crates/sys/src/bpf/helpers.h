/* SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0 */
/*
 * Shared by all objects: threads, cgroups, owners of bios, and sums.
 */
#ifndef BULKHEAD_HELPERS_H
#define BULKHEAD_HELPERS_H

#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "record.h"

/* bpf_probe_read_kernel is available only to programs under a GPL-compatible licence. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline __u32 thread_id(void)
{
	return (__u32)bpf_get_current_pid_tgid();
}

/* The id of a cgroup in the unified hierarchy, else 0. */
static __always_inline __u64 cgroup_id(struct cgroup *cgroup)
{
	if (!cgroup || BPF_CORE_READ(cgroup, root, hierarchy_id) != 0)
		return 0;
	return BPF_CORE_READ(cgroup, kn, id);
}

/* Adds to a sum; returns false if the map is full. */
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

static __always_inline __u64 bio_cgroup(struct bio *bio)
{
	if (!bio)
		return 0;
	if (bpf_core_field_exists(bio->bi_blkg))
		return cgroup_id(bio->bi_blkg->blkcg->css.cgroup);
	return cgroup_id(((struct bio___blkcg *)bio)->bi_blkcg->css.cgroup);
}

#endif
