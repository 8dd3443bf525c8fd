// SPDX-License-Identifier: GPL-2.0-only OR MIT OR Apache-2.0
/*
 * What chosen cgroups ask of devices: requests by device and kind, and durable writes. User space chooses them, in `members`.
 */
#include "helpers.h"

#include <bpf/bpf_tracing.h>

/* Ids of the profiled cgroups. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u8);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct demand_key);
	__type(value, struct demand);
} demands SEC(".maps");

/*
 * Where requests ended, and how many there were before: a request that begins there soon afterwards continues their stream. LRU, because
 * most are never continued.
 */
#define SOON 64
struct end {
	__u64 sector;
	__u32 dev;
	__u32 is_write;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct end);
	__type(value, __u64);
} ends SEC(".maps");

/* Requests so far. Counted without an atomic operation: a lost one is of no consequence. */
__u64 n_requests;

/* Durable writes in progress, by thread. */
struct call {
	__u64 start_ns;
	__u64 commits; /* of the file system, at the start */
	__u32 dev; /* of the file system; 0 until it is known */
	__u32 is_syscall;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct call);
} calls SEC(".maps");

/* Commits by file system. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} commits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct durable);
} durables SEC(".maps");

static __always_inline bool is_member(__u64 cgroup)
{
	return bpf_map_lookup_elem(&members, &cgroup);
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(profile_issue, struct request *request)
{
	struct demand_key key = {};
	struct end end = {};
	struct demand *demand;
	unsigned int flags, op;
	__u64 number, *before;

	if (!request || !request->__data_len)
		return 0;
	flags = request->cmd_flags;
	op = flags & REQ_OP_MASK;
	if ((op != REQ_OP_READ && op != REQ_OP_WRITE) || !is_member(bio_cgroup(request->bio)))
		return 0;
	key.dev = request->q->disk->part0->bd_dev;
	end.dev = key.dev;
	end.sector = request->__sector;
	if (op == REQ_OP_WRITE) {
		end.is_write = 1;
		key.kind = DEMAND_WRITE;
		if (!(flags & (1u << bpf_core_enum_value(enum req_flag_bits, __REQ_SYNC))))
			key.kind |= DEMAND_BACKGROUND;
	}
	number = ++n_requests;
	before = bpf_map_lookup_elem(&ends, &end);
	if (before && number - *before <= SOON)
		key.kind |= DEMAND_SEQUENTIAL;
	end.sector += request->__data_len >> 9;
	bpf_map_update_elem(&ends, &end, &number, BPF_ANY);
	demand = bpf_map_lookup_elem(&demands, &key);
	if (!demand) {
		struct demand none = {};

		bpf_map_update_elem(&demands, &key, &none, BPF_NOEXIST);
		demand = bpf_map_lookup_elem(&demands, &key);
		if (!demand)
			return 0;
	}
	__sync_fetch_and_add(&demand->requests, 1);
	__sync_fetch_and_add(&demand->bytes, request->__data_len);
	return 0;
}

static __always_inline void begin(__u32 dev, __u32 is_syscall)
{
	struct call call = { .start_ns = bpf_ktime_get_ns(), .dev = dev, .is_syscall = is_syscall };
	__u32 thread = thread_id();
	__u64 *n = bpf_map_lookup_elem(&commits, &dev);

	if (n)
		call.commits = *n;
	bpf_map_update_elem(&calls, &thread, &call, BPF_ANY);
}

static __always_inline void end(__u32 is_syscall)
{
	__u32 thread = thread_id(), zero = 0;
	struct call *call = bpf_map_lookup_elem(&calls, &thread);
	struct durable *durable = bpf_map_lookup_elem(&durables, &zero);
	__u64 *n;

	if (!call || !durable || call->is_syscall != is_syscall)
		return;
	__sync_fetch_and_add(&durable->calls, 1);
	__sync_fetch_and_add(&durable->ns, bpf_ktime_get_ns() - call->start_ns);
	n = bpf_map_lookup_elem(&commits, &call->dev);
	if (n && *n != call->commits)
		__sync_fetch_and_add(&durable->commits, 1);
	bpf_map_delete_elem(&calls, &thread);
}

static __always_inline int begin_syscall(void)
{
	if (is_member(bpf_get_current_cgroup_id()))
		begin(0, 1);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_fsync")
int profile_exit_fsync(void *event)
{
	end(1);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_fdatasync")
int profile_exit_fdatasync(void *event)
{
	end(1);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_fsync")
int profile_enter_fsync(void *event)
{
	return begin_syscall();
}

SEC("tracepoint/syscalls/sys_enter_fdatasync")
int profile_enter_fdatasync(void *event)
{
	return begin_syscall();
}

SEC("tp_btf/ext4_sync_file_exit")
int BPF_PROG(ext4_sync_file_exit, struct inode *inode)
{
	end(0);
	return 0;
}

SEC("tp_btf/ext4_sync_file_enter")
int BPF_PROG(ext4_sync_file_enter, struct file *file, int datasync)
{
	__u32 thread = thread_id(), dev;
	struct call *call;
	__u64 *n;

	if (!file || !is_member(bpf_get_current_cgroup_id()))
		return 0;
	dev = file->f_inode->i_sb->s_dev;
	call = bpf_map_lookup_elem(&calls, &thread);
	if (!call) {
		begin(dev, 0);
		return 0;
	}
	call->dev = dev;
	n = bpf_map_lookup_elem(&commits, &dev);
	if (n)
		call->commits = *n;
	return 0;
}

SEC("tp_btf/jbd2_end_commit")
int BPF_PROG(jbd2_end_commit, struct journal_s *journal)
{
	__u32 dev;

	if (!journal)
		return 0;
	dev = journal->j_fs_dev->bd_dev;
	add(&commits, &dev, 1);
	return 0;
}
