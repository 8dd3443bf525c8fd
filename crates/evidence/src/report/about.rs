//! Text about the experiments that only the evidence has.

use bulkhead_measure::report::about::About;

pub(crate) const JOURNAL_FSYNC: About = About {
    question: Some("Do shares hold when both tenants call fsync all the time?"),
    plainly: &[
        "Both tenants write and call fsync without pause; A is promised 70 % of the disk and B 30 %. If the promise holds for the \
         journals too, an fsync in B takes 70/30 = 2.33 times as long as one in A.",
    ],
    published: &[
        "Mardan & Kono 2021, Table 2, two tenants with high fsync load and shares of 70 and 30: 55 / 53 ms without accounting, \
         45 / 86 ms with it. Shares of 70 to 30 would make the latencies 1 to 2.33; theirs came to 1 to 1.9.",
    ],
};

pub(crate) const VOLUME_OVERHEAD: About = About {
    question: Some("What does a volume of one's own cost?"),
    plainly: &[
        "The same writes go to the raw logical volume, and to volumes made in different ways on top of it. What is lost is the price of the volume. \
         A commit of the host's journal for each fsync of a tenant would bring the shared journal back by the back door.",
    ],
    published: &[
        "No paper has these figures. By hand (docs, kernel 6.12): 100 fsyncs in a guest file system on a loop device cost 198 \
         commits of the host's journal; on a logical volume none.",
    ],
};

pub(crate) const JOURNAL_COST: About = About {
    question: Some("What does a system call cost in journal bytes?"),
    plainly: &[],
    published: &[
        "Tobimatsu et al., Table 1, KiB for 1000 calls, mean (coefficient of variation) of 10 runs: mkdir 4442.4 (0.011), creat 323.6 \
         (0.045), mknod 318.8 (0.040), truncate 261.2 (0.010), unlink 296.0 (0.000), write 268.0 (0.000), rmdir 327.6 (0.013).",
    ],
};

pub(crate) const ATTRIBUTION: About = About {
    question: Some("Is each container charged for the journal that it caused?"),
    plainly: &[],
    published: &[
        "No published tool charges containers for the journal they share. Tobimatsu et al. estimate it from numbers of calls: the \
         columns \"by counts\". Their weights have no fsync; a synced append is taken for their write.",
    ],
};

pub(crate) const CHURN: About = About {
    question: Some("Does observing stay exact and small while containers come and go?"),
    plainly: &[],
    published: &[],
};

pub(crate) const SHARE_CORRECTION: About = About {
    question: None,
    plainly: &[],
    published: &[
        "Tobimatsu et al. (the paper that the published mode follows): two containers with equal shares on one file system, both read, \
         one makes 2000 directories in a second: 64.1/35.9 % of the disk without the correction, 50.1/49.9 % with it (BFQ, mean of 60 s).",
    ],
};

pub(crate) const CLONE_READ: About = About {
    question: None,
    plainly: &[],
    published: &[
        "Zhao, Xu and Shain, \"Improving Copy-on-Write Performance in Container Storage Drivers\" (SNIA SDC 2016; Docker 1.10, dm-thin with \
         their module): the second container reads a large file at 1.2 GB/s where the disk gives 120 MB/s (10x, SATA disk), 2.0 GB/s \
         where it gives 840 MB/s (2.4x, PCIe SSD); a hit in the container's own cache gives 2.5 and 3.9 GB/s, so 48 and 51 % of that. \
         md5sum of the file: 2.7 times as fast on the SATA disk.",
        "Where nothing is found, reading is 2.5 % (SATA disk) to 6.7 % (PCIe SSD) slower with their module.",
    ],
};

pub(crate) const LAUNCH_STORM: About = About {
    question: None,
    plainly: &[],
    published: &[
        "Zhao, Xu and Shain (SNIA SDC 2016): TensorFlow containers, each of which loads about 104 MB of model and parameters, start in up to \
         47 % less time on a SATA disk, with two thirds fewer reads of the disk; on a PCIe SSD slightly faster.",
        "They estimate 100 to 400 MB of memory for the records of a 50 GB image with 10 % hot data: 2 to 8 % of that.",
    ],
};

pub(crate) const NESTED_MATRIX: About = About {
    question: Some("Which file system in an image works on which below it?"),
    plainly: &[
        "A container's or a virtual machine's disk is often an image: a file system in a file in another file system. Each pair of file systems is \
         compared with the first one on the disk itself.",
    ],
    published: &[
        "Le, Huang and Wang, \"Understanding Performance Implications of Nested File Systems in a Virtualized Environment\" (FAST 2012; KVM, Linux \
         3.0, a SATA disk): reads are hardly affected and sequential ones may gain; writes lose up to 67 %; a host that passes I/O through is \
         best; latency grows by 10 to 30 %; schedulers and allocation do not work as on a disk; guest and host depend on each other.",
    ],
};

pub(crate) const SCALING: About = About {
    question: Some("How many containers of one kind does a host take, and is that known before?"),
    plainly: &[
        "More containers achieve more together until something is used up, and readers that no longer fit into memory achieve less. Each figure \
         was predicted from a container's run alone.",
    ],
    published: &[
        "Bhimani et al., \"Understanding Performance of I/O Intensive Containerized Applications for NVMe SSDs\" (IPCCC 2016): six times the \
         throughput of one container by choosing their number; writers gain until the processors are busy; readers fall into a throughput valley \
         when their data exceeds memory (4 of 50 GB on 128 GB and more).",
    ],
};

pub(crate) const MIXING: About = About {
    question: Some("Which containers belong together, and is that known before?"),
    plainly: &[
        "Two workloads on one device can leave each other nearly all of their throughput, or half. Each pair and each three was predicted from its workloads alone, and a plan of twelve was made before any of them ran.",
    ],
    published: &[
        "Bhimani et al. (IPCCC 2016), three NVMe drives: random writes lose half beside sequential writes, which lose 16 %; equal kinds of writes lose 10 to \
         15 % each, and so do reads beside writes, which should be preferred.",
    ],
};

pub(crate) const PLAN_SCALE: About = About {
    question: Some("Does planning keep up with large fleets, and how good are its plans?"),
    plainly: &[
        "A plan that takes minutes is not asked for, and a scheduler waits for each pod's answer. Few workloads are placed exactly; many are placed by \
         insertion and exchange, which is compared with exact placements where these can be found.",
    ],
    published: &[],
};

pub(crate) const KUBERNETES: About = About {
    question: Some("Does a StorageClass keep a pod's fsync fast beside a noisy pod?"),
    plainly: &[
        "The same two pods, first with directories of the node's file system, then with volumes of the StorageClass. Nothing else differs.",
    ],
    published: &["No published figure has this workload."],
};

pub(crate) const DISK_MODELS: About = About {
    question: Some("Do the lab's disks behave like the drives they are models of?"),
    plainly: &[],
    published: &[
        "Published figures are of the drives' data sheets and of measurements by others; those marked d are derived from them, not published. \
         No drive has all depths published in one place: Exos X24, Exos M and WD DC HC580 stand in for the spinning disk at depths 16 and 32, \
         the 860 EVO for the flushes of the 870 EVO, the 850 EVO for its sequential rates at depth 1.",
        "The spinning disk's sequential rate is recalled from its data sheet, which was not at hand.",
    ],
};
