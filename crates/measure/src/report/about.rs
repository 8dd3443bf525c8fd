//! Text about an experiment for newcomers: its question, its method, and published results.

/// The text about one experiment.
#[derive(Clone, Copy, Debug, Default)]
pub struct About {
    /// Its question.
    pub question: Option<&'static str>,
    /// Its method, in paragraphs.
    pub plainly: &'static [&'static str],
    /// Published results, in paragraphs, for comparison.
    pub published: &'static [&'static str],
}

/// The probe.
pub const FSYNC_PROBE: About = About {
    question: Some("Does a busy neighbour slow down your fsync?"),
    plainly: &[
        "A program that must not lose data calls fsync and waits until the disk has it; every commit of a database does. Two tenants \
         share one disk here. Tenant A appends 4 KiB and calls fsync ten times a second, and notes how long each takes. Tenant B does \
         nothing at first (\"alone\") and is then as busy as it can be (\"loaded\").",
        "On a file system that both share, A's fsync has to wait until B's data is on the disk, because one journal serves both. Bulkhead \
         gives each tenant a file system and journal of its own, charges the journal's writes to the tenant that caused them, and lets a \
         controller share the disk out.",
        "Where shares are held, A is also promised that 99 % of its fsyncs take at most twice what they took alone, and B is held back \
         until they do.",
    ],
    published: &[
        "No paper has this probe. A public report (Containarium issue 1206) saw 17 ms alone, 11 885 ms beside neighbours on one \
         file system, and 21 to 165 ms after each tenant got a file system of its own.",
    ],
};

/// The database.
pub const DBMS_CONSOLIDATION: About = About {
    question: Some("Can a database keep its speed beside a noisy neighbour?"),
    plainly: &[
        "A database inserts rows as fast as it can and is promised 70 % of a disk. Its neighbour, promised 30 %, writes without fsync, \
         with some, or with as many as it can. This repeats the experiment of a paper in its three steps: one journal for both, a \
         journal each, and a journal each whose writes are charged to its tenant.",
    ],
    published: &[
        "Mardan & Kono 2021, Table 1, mean fsync latency of MySQL beside a neighbour with no, low and high fsync load: shared \
         journal 120 / 161 / 96 ms; own journal 104 / 93 / 91 ms; own journal with accounting 24 / 25 / 25 ms.",
        "Its throughput gain is \"up to 3.4x\" in the abstract and 2.8x in the text; MySQL's share of the disk went from 20 % to \
         the promised 70 % (figures 4 and 9). The figures of throughput are only plotted, so they are not repeated here.",
    ],
};
