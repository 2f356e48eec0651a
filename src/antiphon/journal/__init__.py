"""The journal: what a node must not forget, on a disk that may lose power at any moment.

    format           what a page, a block and a record look like
    superblock       the few facts kept in four copies
    journal          writing: append, flush, synced; roll-over and release of segments
    recovery         reading it all back after a crash: repair, cut the torn tail, or refuse
    opening          what was read, before anything is written
    records          reading one record, verified
    payload_index    which envelope lies where
    checkpoints      state files beside the segments
    checkpoint_line  when such a file is begun, and which segments the files need
    parts            what is gathered until it is written
    chores           slow work on files for a worker thread
    ports            what all of it needs from a disk
    memory_disk      a disk that loses power when a test says so

Pure: files, threads and clocks are handed in by `runtime` or `sim`.
"""
