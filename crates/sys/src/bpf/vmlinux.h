/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The kernel's structures, as far as the programs read them. CO-RE finds each field by its name in the running kernel's BTF,
 * so that order and omissions here do not matter; a field that a kernel does not have is asked for by bpf_core_field_exists.
 */
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0

/* <uapi/linux/bpf.h> */
enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_RB_NO_WAKEUP = 1,
};
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

struct journal_s;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	__u64 id;
};
struct cgroup_root {
	int hierarchy_id;
};
struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_root *root;
};
struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct task_struct {
	unsigned int flags;
	__u64 start_time;
};

struct block_device {
	__u32 bd_dev;
};
struct super_block {
	__u32 s_dev;
	void *s_fs_info;
};
struct bdi_writeback {
	struct cgroup_subsys_state *memcg_css;
	struct cgroup_subsys_state *blkcg_css;
};
struct inode {
	struct super_block *i_sb;
	struct bdi_writeback *i_wb;
};
struct file {
	struct inode *f_inode;
};

struct blkcg {
	struct cgroup_subsys_state css;
};
struct blkcg_gq {
	struct blkcg *blkcg;
};
struct bvec_iter {
	unsigned int bi_size;
};
struct bio {
	unsigned int bi_opf;
	struct block_device *bi_bdev;
	struct bvec_iter bi_iter;
	struct blkcg_gq *bi_blkg;
	void *bi_private;
};
/* Kernels from 7.2 on hold the blkcg itself. */
struct bio___blkcg {
	struct blkcg *bi_blkcg;
};
struct gendisk {
	struct block_device *part0;
};
struct request_queue {
	struct gendisk *disk;
};
struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
	__u64 __sector;
	struct bio *bio;
};

struct transaction_s {
	struct journal_s *t_journal;
	__u32 t_tid;
	__s64 t_start_time;
};
struct jbd2_journal_handle {
	struct transaction_s *h_transaction;
	int h_total_credits;
	int h_requested_credits;
};
struct buffer_head {
	__u64 b_blocknr;
	void *b_private;
};
struct journal_head {
	unsigned int b_modified;
};
struct journal_s {
	struct transaction_s *j_running_transaction;
	struct block_device *j_dev;
	struct block_device *j_fs_dev;
	struct task_struct *j_task;
	int j_blocksize;
	unsigned long j_commit_interval;
};
struct ext4_sb_info {
	struct journal_s *s_journal;
};
struct ext4_inode_info {
	struct inode vfs_inode;
	__u32 i_sync_tid;
	__u32 i_datasync_tid;
};

/* XFS. */
struct list_head {
	struct list_head *next;
};
typedef struct {
	__s64 counter;
} atomic64_t;
struct xfs_ail {
	struct task_struct *ail_task;
};
struct xfs_mount {
	struct super_block *m_super;
	struct xfs_ail *m_ail;
	struct xlog *m_log;
};
struct xfs_buftarg {
	struct block_device *bt_bdev;
};
struct xfs_cil_ctx {
	__s64 sequence;
};
struct xfs_cil {
	struct xfs_cil_ctx *xc_ctx;
	__s64 xc_current_sequence;
};
struct xlog {
	struct xfs_mount *l_mp;
	struct xfs_cil *l_cilp;
	struct xfs_buftarg *l_targ;
	int l_iclog_hsize;
	int l_iclog_size;
	int l_logBBsize;
	int l_curr_cycle;
	int l_curr_block;
	atomic64_t l_tail_lsn;
	__u32 l_iclog_roundoff;
};
struct xlog_in_core {
	struct xlog *ic_log;
	struct bio ic_bio;
};
struct xfs_trans {
	struct xfs_mount *t_mountp;
	struct list_head t_items;
};
struct xfs_log_vec {
	int lv_bytes;
};
struct xfs_log_item {
	struct list_head li_trans;
	struct xlog *li_log;
	unsigned int li_type;
	unsigned long li_flags;
	struct xfs_log_vec *li_lv;
};
struct xfs_inode {
	struct inode i_vnode;
};
struct xfs_inode_log_item {
	struct xfs_log_item ili_item;
	struct xfs_inode *ili_inode;
};

#pragma clang attribute pop

/* Bit numbers, which the running kernel is asked for. */
enum req_flag_bits {
	__REQ_SYNC = 11,
	__REQ_META = 12,
};

/* Constants of <linux/blk_types.h> and <linux/sched.h>. */
#define REQ_OP_MASK 0xffu
#define REQ_OP_READ 0u
#define REQ_OP_WRITE 1u
#define REQ_OP_FLUSH 2u
#define REQ_OP_ZONE_APPEND 7u
#define PF_KTHREAD 0x00200000u

/* Constants of fs/xfs: libxfs/xfs_log_format.h, xfs_trans.h (the bit XFS_LI_DIRTY), libxfs/xfs_fs.h (BBSIZE). */
#define XFS_LI_INODE 0x123bu
#define XFS_LI_DIRTY (1ul << 3)
#define BASIC_BLOCK_BYTES 512u

#endif
